//! The cache: frontier, rows, layer caches on both paths.

mod golden;
mod layer;
mod plan;
mod rows;
#[path = "../support/mod.rs"]
mod support;
mod trials;
