//! The cache over the life of its sequences.

mod pool;
mod pool_model;
mod pool_scale;
mod pool_trials;
