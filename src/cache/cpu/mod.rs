//! The cache in host memory.

pub mod rows;
