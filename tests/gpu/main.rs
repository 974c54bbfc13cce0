//! The GPU plumbing, apart from the methods.
#[path = "../support/mod.rs"]
mod support;

mod recorder;
