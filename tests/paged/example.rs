//! The worked example of an engine.

#[path = "../../tools/engine/engine.rs"]
mod engine;
#[path = "../../tools/engine/model.rs"]
mod model;
#[path = "../../tools/engine/story.rs"]
mod story;

#[test]
fn the_engine_serves_its_story() {
    let mut out = Vec::new();
    story::run(crate::support::context(), 40, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 9, "{text}");
}
