//! NestedKV on both paths against the reference cases and the judge.

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod golden;
