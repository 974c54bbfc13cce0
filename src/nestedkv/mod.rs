//! NestedKV (arXiv 2605.26678): which tokens of a prompt stay in the cache.
//!
//! A key's score says how far it stands out from what the cache remembers at three scales: the whole
//! prompt, its block, and the recent window. The highest scores stay; the others are dropped once,
//! at the end of the prompt. Only keys are looked at.
//!
//! # Non-finite keys
//! NaN and Inf are read as 0, and a key row that holds one has score -1, below every other score
//! (those lie in `[0, 1]`), so it is kept only when nothing else is left.
//!
//! # Sums
//! Normalised keys are summed over blocks and windows as integers, in multiples of 2^-22
//! ([`plan::GRID`]): exact in any order, so the trailing window's error does not grow with the
//! length of the prompt, and equal keys score equal. Everything else is f32 in a fixed order: dot
//! products in lanes by channel, sums over a row in 256 lanes. Both paths agree with f64 within
//! `1e-6 / s + 2e-6` in normalised scores, where `s` is the smallest span of raw scores of the row;
//! given the same scores, selections are the same bit for bit.

pub mod config;
pub mod cpu;
pub mod gpu;
pub mod params;
pub mod plan;

pub use config::{Budget, EvictConfig, ScoreConfig};
pub use plan::block_size_for;
