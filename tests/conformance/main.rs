//! The conformance suite: it passes here, it sees planted faults, its cases and reports can be kept.

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod self_test;
mod suite;
