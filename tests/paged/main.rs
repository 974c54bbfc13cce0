//! The paged cache as a whole, on both paths: random lives of sequences, laws, trials, faults.

mod attend;
mod example;
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
