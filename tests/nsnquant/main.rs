//! NSNQuant: both paths against reference values, against each other and against their own rules.

#[path = "../support/mod.rs"]
mod support;

mod codebook;
mod common;
mod decode;
mod encode;
mod hadamard;
