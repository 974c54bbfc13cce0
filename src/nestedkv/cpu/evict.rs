//! Which tokens stay, and the job as a whole: score, select, gather.

use half::f16;

use super::budgets::share;
use super::score::score_batched;
use crate::error::{Error, Result};
use crate::nestedkv::config::{Budget, EvictConfig};
use crate::nestedkv::plan::{KeepPlan, check_pair};
use crate::primitives::cpu::{compact, gather as rows, scan, select};
use crate::primitives::order::{SINK_KEY, order_key};
use crate::primitives::parallel;
use crate::shape::Tensor;

/// Tokens that stay, row after row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// `[rows + 1]`: row `r` has `positions[offsets[r]..offsets[r + 1]]`.
    pub offsets: Vec<u32>,
    /// Positions of the tokens that stay, ascending in each row.
    pub positions: Vec<u32>,
    /// Whether the budget asked for was below the sinks, which stayed all the same.
    pub sinks_only: bool,
}

impl Kept {
    /// Tokens that stay in row `row`.
    ///
    /// # Panics
    /// When there is no such row, as indexing does.
    pub fn row(&self, row: usize) -> &[u32] {
        &self.positions[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// Number of tokens that stay in each row.
    pub fn budgets(&self) -> Vec<u32> {
        self.offsets.windows(2).map(|w| w[1].saturating_sub(w[0])).collect()
    }
}

/// Selects by scores `[rows, tokens]`: the sinks, then the highest scores, equal scores by position.
/// A row keeps `max(sinks, min(budget, tokens))`; with adaptive budgets the rows of a sequence do
/// together, sinks first in the competition (arXiv 2605.26678, appendix A).
///
/// # Errors
/// As [`EvictConfig::validate`]; [`Error::Length`] for scores that do not fill the shape;
/// [`Error::Empty`] for no rows or tokens; [`Error::OutOfRange`] for more than `u32::MAX` tokens.
pub fn keep(scores: &[f32], rows: usize, tokens: usize, cfg: &EvictConfig) -> Result<Kept> {
    cfg.validate(rows)?;
    if rows == 0 || tokens == 0 {
        return Err(Error::Empty { argument: "scores" });
    }
    let expected = rows.saturating_mul(tokens);
    if scores.len() != expected {
        return Err(Error::Length { argument: "scores", got: scores.len(), expected });
    }
    if tokens > u32::MAX as usize {
        let max = u64::from(u32::MAX);
        return Err(Error::OutOfRange { argument: "tokens", got: tokens as u64, min: 1, max });
    }
    let plan = KeepPlan::new(cfg, tokens);
    plan.total(rows)?;
    let mut keys = vec![0u32; scores.len()];
    let tasks = scores.chunks(tokens).zip(keys.chunks_mut(tokens)).collect();
    parallel::for_each(tasks, |(scores, keys): (&[f32], &mut [u32])| {
        for (position, (key, &score)) in keys.iter_mut().zip(scores).enumerate() {
            *key = if position < plan.sinks { SINK_KEY } else { order_key(score) };
        }
    });
    let budgets = match cfg.budget {
        Budget::Uniform(_) => vec![plan.per_sequence as u32; rows],
        Budget::Adaptive { .. } => {
            let sequences = keys.chunks(tokens * plan.heads).collect();
            parallel::map(sequences, |sequence: &[u32]| {
                let heads: Vec<&[u32]> = sequence.chunks(tokens).collect();
                share(&heads, plan.per_sequence, cfg.safeguard)
            })
            .concat()
        }
    };
    let offsets = scan::offsets("kept tokens", &budgets)?;
    let mut positions = vec![0u32; offsets[rows] as usize];
    let parts = parallel::split(&mut positions, budgets.iter().map(|&b| b as usize));
    let tasks = keys.chunks(tokens).zip(parts).collect();
    parallel::for_each(tasks, |(keys, out): (&[u32], &mut [u32])| {
        compact::compact(keys, select::threshold(keys, out.len()), out);
    });
    Ok(Kept { offsets, positions, sinks_only: plan.sinks_only })
}

/// Copies the rows of `data` that stay, `[kept, head_dim]`, as f16: f16 keeps its bits, bf16 and f32
/// are rounded to nearest even.
///
/// # Errors
/// [`Error::BeyondF16`] when a finite value does not fit f16; [`Error::Length`] and
/// [`Error::Offsets`] when `kept` belongs to another shape.
pub fn gather(data: &Tensor<'_>, kept: &Kept) -> Result<Vec<f16>> {
    rows::gather("data", data, &kept.offsets, &kept.positions)
}

/// What stays of a prompt, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct Evicted {
    /// Which tokens they were.
    pub kept: Kept,
    /// Keys that stay, f16 `[kept, head_dim_k]`.
    pub keys: Vec<f16>,
    /// Values that stay, f16 `[kept, head_dim_v]`.
    pub values: Vec<f16>,
    /// Key rows of the prompt that hold NaN or Inf.
    pub nonfinite: usize,
}

/// Scores keys `[rows, tokens, head_dim]`, selects, and gathers keys and values, whose head
/// dimensions may differ: the job of [`crate::nestedkv`], once at the end of a prompt (arXiv 2605.26678).
///
/// # Errors
/// As [`keep`] and [`gather`]; [`Error::Mismatch`] when keys and values differ in rows or tokens.
pub fn compress_prefill(
    keys: &Tensor<'_>,
    values: &Tensor<'_>,
    cfg: &EvictConfig,
) -> Result<Evicted> {
    cfg.validate(keys.rows())?;
    check_pair(keys.rows(), keys.tokens(), values.rows(), values.tokens())?;
    let scores = score_batched(keys, &cfg.score)?;
    let kept = keep(&scores.score, keys.rows(), keys.tokens(), cfg)?;
    let keys = rows::gather("keys", keys, &kept.offsets, &kept.positions)?;
    let values = rows::gather("values", values, &kept.offsets, &kept.positions)?;
    Ok(Evicted { kept, keys, values, nonfinite: scores.nonfinite })
}

/// [`compress_prefill`] of one head: keys and values `[tokens, head_dim]`, the budget uniform.
///
/// # Errors
/// As [`compress_prefill`]; [`Error::Mismatch`] for a tensor of more than one row.
pub fn compress_prefill_per_head(
    keys: &Tensor<'_>,
    values: &Tensor<'_>,
    cfg: &EvictConfig,
) -> Result<Evicted> {
    if keys.rows() != 1 {
        return Err(Error::Mismatch {
            argument: "rows",
            got: keys.rows(),
            expected: 1,
            reference: "one head",
        });
    }
    compress_prefill(keys, values, cfg)
}
