//! The cache: frontier, rows, layer caches on both paths, the account of a pool.

mod golden;
mod layer;
mod paged;
mod paged_attend;
mod paged_faults;
mod paged_laws;
mod paged_model;
mod paged_trials;
mod paged_twin;
mod paged_world;
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
