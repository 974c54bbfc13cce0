//! What the methods share: order of scores, selection, compaction, offsets, gathering.
//!
//! `cpu` and `gpu` hold one file per stage, with the same stem as the shader in `wgsl/primitives`.

pub mod cpu;
pub mod gpu;
pub mod math;
pub mod order;
pub mod parallel;
pub mod params;
