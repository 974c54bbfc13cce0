//! The paged cache as a whole, on both paths: random lives of sequences, laws, trials, faults.

mod attend;
mod engine {
    //! The worked example.

    #[path = "../../../tools/engine/engine.rs"]
    mod engine;
    #[path = "../../../tools/engine/model.rs"]
    mod model;
    #[path = "../../../tools/engine/story.rs"]
    mod story;

    #[test]
    fn the_example_serves_its_story() {
        let mut out = Vec::new();
        story::run(crate::support::context(), 40, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 9, "{text}");
    }
}
mod faults;
mod laws;
mod lives;
mod model;
#[path = "../cache/pool_model.rs"]
#[allow(dead_code, reason = "the tests of the account use more of it")]
mod pool_model;
mod soak;
#[path = "../support/mod.rs"]
mod support;
mod trials;
mod twin;
mod world;
