//! wgkv keeps a transformer's KV cache compressed in GPU memory.
#![deny(unsafe_code)]

pub mod attention;
pub mod cache;
pub mod error;
pub mod gpu;
pub mod judge;
pub mod kernels;
pub mod layout;
pub mod nestedkv;
pub mod nsnquant;
pub mod primitives;
pub mod shape;

pub use error::{Error, Result};
pub use wgpu;
