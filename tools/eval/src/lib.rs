//! A language model whose KV cache is wgkv, and what compression does to it.

pub mod cache;
pub mod choice;
pub mod error;
pub mod fake;
pub mod generate;
pub mod gpu;
pub mod loss;
pub mod model;
pub mod plot;
pub mod rule;
pub mod text;
pub mod weights;
pub mod words;
