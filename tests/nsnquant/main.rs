//! NSNQuant: both paths against reference values, against each other and against their own rules.

#[path = "../support/mod.rs"]
mod support;

mod codebook;
mod common;
mod compare;
mod decode;
mod degenerate;
mod encode;
mod errors;
mod fidelity;
mod generate;
mod hadamard;
mod key_scale;
mod largest;
mod nearest;
mod properties;
mod schemes;
mod squares;
mod trials;
