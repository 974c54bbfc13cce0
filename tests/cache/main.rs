//! The cache: frontier, rows, layer caches on both paths.

mod plan;
mod rows;
#[path = "../support/mod.rs"]
mod support;
