//! The cache: frontier, rows, layer caches on both paths, the account of a pool.

#[allow(dead_code, reason = "the tests of the encoder use the rest")]
#[path = "../nsnquant/common.rs"]
mod common;
#[path = "../nsnquant/compare.rs"]
mod compare;
mod copy;
mod fetch;
#[cfg(feature = "files")]
mod file;
#[cfg(feature = "files")]
mod file_mlx;
#[cfg(feature = "files")]
mod file_paged;
mod golden;
mod keep;
mod layer;
mod pack;
mod paged;
mod paged_record;
mod paged_refused;
mod pages;
mod plan;
mod pool;
mod pool_model;
mod pool_scale;
mod pool_snapshot;
mod pool_trials;
mod restore;
mod rows;
mod scales;
#[path = "../support/mod.rs"]
mod support;
mod transfer;
mod trials;
mod twin;
mod types;
mod write;
