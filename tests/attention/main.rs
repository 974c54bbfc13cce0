//! Attention: both paths against the f64 judge and against each other.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod common;
mod fused;
mod integers;
mod merge;
mod packed;
mod paged;
mod paged_packed;
mod paged_raw;
mod raw;
mod rotate;
mod schemes;
