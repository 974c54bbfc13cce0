//! The cache in device memory.

pub mod rows;
