//! The GPU plumbing and the rules that every shader keeps, apart from the methods.
#[path = "../support/mod.rs"]
mod support;

mod arithmetic;
mod lint;
mod modules;
mod places;
mod planted;
mod recorder;
mod shaders;
mod sizes;
