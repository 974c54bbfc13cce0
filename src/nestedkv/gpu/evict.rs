//! Which tokens stay, and the job as a whole.

use super::budgets;
use super::score::{DeviceScores, score};
use crate::error::{Error, Result};
use crate::gpu::{DeviceTensor, Recorder, Slice};
use crate::nestedkv::config::{Budget, EvictConfig};
use crate::nestedkv::plan::KeepPlan;
use crate::primitives::gpu::gather::{self as rows_of, Gathered};
use crate::primitives::gpu::{check_words, compact, scan, select, size};

/// Tokens that stay, row after row, on the device: [`crate::nestedkv::cpu::Kept`].
#[derive(Clone, Debug)]
pub struct DeviceKept {
    /// Where each row begins and where the last ends, u32 `[rows + 1]`.
    pub offsets: wgpu::Buffer,
    /// `[total]` u32: position within its row, ascending in each row.
    pub positions: wgpu::Buffer,
    /// `[total]` u32: token row counted over all rows.
    pub sources: wgpu::Buffer,
    /// `[rows]` u32: tokens that stay in each row.
    pub budgets: wgpu::Buffer,
    /// Tokens that stay in all.
    pub total: u64,
    /// Whether the budget asked for was below the sinks, which stay all the same.
    pub sinks_only: bool,
}

/// Records the selection by scores `[rows, tokens]` f32, as [`crate::nestedkv::cpu::keep`] does, bit
/// for bit.
///
/// # Errors
/// As [`EvictConfig::validate`]; [`Error::Empty`]; [`Error::Length`] for scores that do not fill the
/// shape; [`Error::OutOfRange`] for more than `u32::MAX` kept tokens; [`Error::DeviceLimit`].
pub fn keep(
    rec: &mut Recorder<'_>,
    scores: Slice<'_>,
    rows: usize,
    tokens: usize,
    cfg: &EvictConfig,
) -> Result<DeviceKept> {
    cfg.validate(rows)?;
    if rows == 0 || tokens == 0 {
        return Err(Error::Empty { argument: "scores" });
    }
    check_words("scores", scores.size, rows.saturating_mul(tokens))?;
    let plan = KeepPlan::new(cfg, tokens);
    let total = plan.total(rows)?;
    let sinks = plan.sinks as u32;
    let each = size("tokens", tokens)?;
    size("scores", rows * tokens)?;
    let starts: Vec<u32> = (0..=rows as u32).map(|row| row * each).collect();
    let starts = rec.context().upload("starts", bytemuck::cast_slice(&starts))?;
    let starts = Slice::all(&starts);
    let (budgets, offsets, thresholds) = match cfg.budget {
        Budget::Uniform(_) => {
            let each = plan.per_sequence as u32;
            let budgets = vec![each; rows];
            let offsets: Vec<u32> = (0..=rows as u32).map(|row| row * each).collect();
            let context = rec.context();
            let budgets = context.upload("budgets", bytemuck::cast_slice(&budgets))?;
            let offsets = context.upload("offsets", bytemuck::cast_slice(&offsets))?;
            let counts = Slice::all(&budgets);
            let thresholds = select::record(rec, scores, starts, rows, tokens, sinks, counts)?;
            (budgets, offsets, thresholds)
        }
        Budget::Adaptive { .. } => {
            let floors = vec![plan.floor; rows];
            let competition = budgets::Competition {
                scores,
                starts,
                longest: tokens,
                floors: &floors,
                heads: plan.heads,
                per_sequence: plan.per_sequence,
                sinks,
            };
            let budgets::Shared { budgets, thresholds } = budgets::record(rec, &competition)?;
            let offsets = scan::record(rec, Slice::all(&budgets), rows)?;
            (budgets, offsets, thresholds)
        }
    };
    let (thresholds, ends) = (Slice::all(&thresholds), Slice::all(&offsets));
    let compact::Compacted { positions, sources } =
        compact::record(rec, scores, rows, tokens, sinks, thresholds, ends, total)?;
    let sinks_only = plan.sinks_only;
    Ok(DeviceKept { offsets, positions, sources, budgets, total, sinks_only })
}

/// Records the copy of the rows of `data` that stay, `[total, head_dim]` f16.
///
/// # Errors
/// [`Error::DeviceLimit`] when they exceed what the device can bind.
pub fn gather(
    rec: &mut Recorder<'_>,
    data: &DeviceTensor<'_>,
    kept: &DeviceKept,
) -> Result<Gathered> {
    rows_of::record(rec, data, Slice::all(&kept.sources), kept.total)
}

/// What stays of a prompt, on the device.
#[derive(Clone, Debug)]
pub struct DeviceEvicted {
    /// The scores that decided.
    pub scores: DeviceScores,
    /// Which tokens they were.
    pub kept: DeviceKept,
    /// Keys that stay, `[total, head_dim_k]`.
    pub keys: Gathered,
    /// Values that stay, `[total, head_dim_v]`.
    pub values: Gathered,
}

/// Records the whole job: scores, selection, copies, once at the end of a prompt (arXiv 2605.26678,
/// appendix A).
///
/// # Errors
/// As [`score`], [`keep`] and [`gather`]; [`Error::Mismatch`] when keys and values differ in rows or
/// tokens.
pub fn compress_prefill(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    values: &DeviceTensor<'_>,
    cfg: &EvictConfig,
) -> Result<DeviceEvicted> {
    cfg.validate(keys.rows())?;
    crate::nestedkv::plan::check_pair(keys.rows(), keys.tokens(), values.rows(), values.tokens())?;
    let scores = score(rec, keys, &cfg.score)?;
    let kept = keep(rec, Slice::all(&scores.score), keys.rows(), keys.tokens(), cfg)?;
    let keys = gather(rec, keys, &kept)?;
    let values = gather(rec, values, &kept)?;
    Ok(DeviceEvicted { scores, kept, keys, values })
}
