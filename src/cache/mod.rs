//! A layer's cache as an engine uses it: append, trim, fork, fetch.

pub mod cpu;
pub mod gpu;
mod ledger;
pub mod plan;

pub use plan::{Counters, Frontier};
