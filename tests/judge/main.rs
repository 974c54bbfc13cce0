//! The f64 judge against the reference files, and its number formats against the `half` crate.
#[path = "../support/mod.rs"]
mod support;

mod nestedkv;
mod nsnquant;
mod numbers;
