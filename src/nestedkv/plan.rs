//! Arithmetic of sizes and budgets that both paths share.

use super::config::{Budget, EvictConfig};
use crate::error::{Error, Result};
use crate::shape::check_head_dim;

/// Raw spans up to this count as none, and the scale's scores as all zero: rounding in f32 can make
/// such a span out of keys that are equal in truth, and stretching it to `[0, 1]` would select at
/// random. Also the bound for the span of the surprise.
pub const FLAT_SPAN: f32 = 1e-6;

/// Norms below this count as this (step 1 of the score).
pub const NORM_FLOOR: f32 = 1e-12;

/// Score of a key row that holds NaN or Inf.
pub const NONFINITE_SCORE: f32 = -1.0;

/// Channels of normalised keys are summed as whole multiples of `1 / GRID`: such sums are exact, so
/// a trailing window can leave tokens behind without an error that grows, and equal keys have equal
/// means wherever they stand.
pub const GRID: f32 = 4_194_304.0;

/// Most tokens whose sum on the grid fits 32 bits with room for one more key; longer windows need
/// more.
pub const SHORT_SUM: usize = 256;

/// Most tokens of a run: on the GPU, blocks and windows are sums of runs, and of single tokens where
/// these do not fit.
pub const RUN_TOKENS: usize = 64;

/// How rows of `tokens` tokens are cut: blocks of `block` tokens, and within them runs of up to
/// [`RUN_TOKENS`], as many in every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of a row.
    pub tokens: usize,
    /// Tokens of a block, at most those of a row.
    pub block: usize,
}

impl Cut {
    /// Runs of a block.
    pub fn pieces(&self) -> usize {
        self.block.div_ceil(RUN_TOKENS)
    }

    /// Runs of a row; the last ones are empty where the last block is short.
    pub fn runs(&self) -> usize {
        self.tokens.div_ceil(self.block.max(1)) * self.pieces()
    }
}

/// Tokens of a block of the episodic scale: `min(n, clip(floor(n / 32), 128, 256))` (arXiv
/// 2605.26678, section 2.2).
pub fn block_size_for(n: usize) -> usize {
    n.min((n / 32).clamp(128, 256))
}

/// Tokens in the top and the bottom group of a gap (step 5): a tenth, halves rounded to even, at least 1.
pub fn group_size(n: usize) -> usize {
    ((n as f64 * 0.1).round_ties_even() as usize).max(1)
}

/// Most rows of a state: on the host each takes some memory even while it holds no token.
pub const MAX_ROWS: usize = 1 << 24;

/// Checks what a cache of `rows` heads is made from, on either path.
///
/// # Errors
/// As [`EvictConfig::validate`]; [`Error::Empty`] for no rows; [`Error::HeadDim`];
/// [`Error::OutOfRange`] for more than [`MAX_ROWS`] rows and for a budget that leaves no room beside
/// the sinks.
pub fn check_state(
    rows: usize,
    key_dim: usize,
    value_dim: usize,
    config: &EvictConfig,
) -> Result<()> {
    config.validate(rows)?;
    if rows == 0 {
        return Err(Error::Empty { argument: "rows" });
    }
    if rows > MAX_ROWS {
        let (got, max) = (rows as u64, MAX_ROWS as u64);
        return Err(Error::OutOfRange { argument: "rows", got, min: 1, max });
    }
    check_head_dim("keys", key_dim)?;
    check_head_dim("values", value_dim)?;
    let (Budget::Uniform(budget) | Budget::Adaptive { per_head: budget, .. }) = config.budget;
    if budget <= config.sinks {
        return Err(Error::OutOfRange {
            argument: "budget",
            got: u64::from(budget),
            min: u64::from(config.sinks) + 1,
            max: u64::from(u32::MAX),
        });
    }
    Ok(())
}

/// What a budget means for rows of `tokens` tokens each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepPlan {
    /// Sinks of each row.
    pub sinks: usize,
    /// Rows that share a budget: 1, or the heads of a sequence.
    pub heads: usize,
    /// Tokens that these rows keep together.
    pub per_sequence: u64,
    /// Tokens that each row is sure of.
    pub floor: u32,
    /// Whether the budget asked for is below the sinks, which stay all the same.
    pub sinks_only: bool,
}

impl KeepPlan {
    /// Reads a checked configuration.
    pub fn new(cfg: &EvictConfig, tokens: usize) -> Self {
        let sinks = tokens.min(cfg.sinks as usize);
        match cfg.budget {
            Budget::Uniform(budget) => {
                let asked = tokens.min(budget as usize);
                Self {
                    sinks,
                    heads: 1,
                    per_sequence: asked.max(sinks) as u64,
                    floor: 0,
                    sinks_only: asked < sinks,
                }
            }
            Budget::Adaptive { per_head, heads } => {
                let asked = (tokens.min(per_head as usize) as u64).saturating_mul(heads as u64);
                let least = (sinks as u64).saturating_mul(heads as u64);
                let total = asked.max(least);
                // The rows are equally long, so their floors are equal too.
                let floor = head_floors(&[tokens], heads, total, cfg.safeguard)[0];
                Self { sinks, heads, per_sequence: total, floor, sinks_only: asked < least }
            }
        }
    }

    /// Tokens that all rows keep together.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they exceed `u32::MAX`.
    pub fn total(&self, rows: usize) -> Result<u64> {
        let total = self.per_sequence.saturating_mul((rows / self.heads.max(1)) as u64);
        if total > u64::from(u32::MAX) {
            let max = u64::from(u32::MAX);
            return Err(Error::OutOfRange { argument: "kept tokens", got: total, min: 0, max });
        }
        Ok(total)
    }
}

/// Tokens that each head is sure of (arXiv 2605.26678, appendix A), in f64 and in the order of the rule:
/// `trunc(safeguard * (1 - r) * n)` with `r = 1 - total / N`, scaled down together when they exceed
/// the total. `lengths` repeats `times` times.
pub fn head_floors(lengths: &[usize], times: usize, total: u64, safeguard: f64) -> Vec<u32> {
    let sum = lengths.iter().fold(0u64, |sum, &n| sum.saturating_add(n as u64));
    let all = sum.saturating_mul(times as u64);
    if all == 0 {
        return vec![0; lengths.len()];
    }
    let total = total.min(all) as f64;
    let evicted = (1.0 - total / all as f64).clamp(0.0, 1.0);
    let mut floors: Vec<f64> = lengths
        .iter()
        .map(|&n| (safeguard * (1.0 - evicted) * n as f64).trunc().clamp(0.0, n as f64))
        .collect();
    let sum = floors.iter().sum::<f64>() * times as f64;
    if sum > total {
        for floor in &mut floors {
            *floor = (*floor * (total / sum)).trunc();
        }
    }
    floors.into_iter().map(|floor| floor as u32).collect()
}

/// Refuses keys and values of different rows or tokens.
pub(crate) fn check_pair(
    key_rows: usize,
    key_tokens: usize,
    value_rows: usize,
    value_tokens: usize,
) -> Result<()> {
    let pairs = [
        ("rows of the values", value_rows, key_rows),
        ("tokens of the values", value_tokens, key_tokens),
    ];
    for (argument, got, expected) in pairs {
        if got != expected {
            return Err(Error::Mismatch { argument, got, expected, reference: "the keys" });
        }
    }
    Ok(())
}
