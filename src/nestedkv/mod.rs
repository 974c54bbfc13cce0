//! NestedKV (arXiv 2605.26678): which tokens of a prompt stay in the cache.
//!
//! A key's score says how far it stands out from what the cache remembers at three scales: the whole
//! prompt, its block, and the recent window. The highest scores stay; the others are dropped once,
//! at the end of the prompt. Only keys are looked at.
//!
//! # Steps
//! The score of token `i` of a row of `n` keys `[n, d]`, in the numbers that the stages' modules name
//! (arXiv 2605.26678; constants in [`ScoreConfig`]):
//!
//! 1. `k_i` is divided by `max(|k_i|, 1e-12)`.
//! 2. Anchors `mu_s`, `mu_e(i)`, `mu_c(i)`: means over the row, over the block of `i`
//!    ([`block_size_for`]) and over the `window` tokens up to `i`.
//! 3. Anomalies `-<k_i, mu>` at the three scales.
//! 4. Each scale is stretched over the row to `[0, 1]`; a span that rounding explains counts as 0.
//! 5. Gap of a scale: mean of its highest tenth minus mean of its lowest.
//! 6. Blend: the scales weighed with `softmax(ln prior + beta * gap)`.
//! 7. Surprise: population standard deviation of the three scales at `i`, stretched over the row, minus
//!    its mean.
//! 8. `alpha = sigmoid(kappa * (surprise - tau))`; the score is `(1 - alpha) * blend + alpha * largest
//!    scale`.
//!
//! # Sources
//! The anchors and the schedule of block sizes are section 2.2 of arXiv 2605.26678. Its appendix A has the
//! constants, the centring of the surprise (step 7), budgets shared out over heads
//! ([`cpu::allocate_head_budgets`]), and that a prompt is scored once, at its end. Sums on a grid
//! ([`plan::GRID`]), the span that counts as none ([`plan::FLAT_SPAN`]) and the order of ties are this
//! library's.
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
