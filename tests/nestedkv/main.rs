//! NestedKV on both paths against the reference cases and the judge.

#[path = "../support/mod.rs"]
mod support;

mod anchor;
mod anomaly;
mod append;
mod blend;
mod budgets;
mod cases;
mod evict;
mod gate;
mod golden;
mod mean;
mod norm;
mod score;
mod spread;
mod state;
mod state_gpu;
mod surprise;
mod trials;
