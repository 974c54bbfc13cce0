//! The cache: frontier, rows, layer caches on both paths, the account of a pool.

mod golden;
mod layer;
mod plan;
mod pool;
mod pool_model;
mod pool_scale;
mod pool_snapshot;
mod pool_trials;
mod rows;
#[path = "../support/mod.rs"]
mod support;
mod trials;
mod types;
