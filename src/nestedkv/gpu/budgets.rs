//! How the tokens of a sequence are shared out over its heads.

use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::BudgetsParams;
use crate::nestedkv::plan::KeepPlan;
use crate::primitives::gpu::{check_words, select, size};

/// One sequence a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/budgets",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/radix.wgsl"),
        include_str!("../../../wgsl/nestedkv/budgets.wgsl"),
    ),
    bindings: &[Binding::Read("scores"), Binding::Read("thresholds"), Binding::Write("budgets")],
    params: BudgetsParams::LAYOUT,
};

/// Records the budget of every row, `[rows]` u32, from scores `[rows, tokens]`: those of the
/// `plan.heads` rows of a sequence add up to `plan.per_sequence`.
///
/// # Errors
/// [`Error::Length`] for a slice shorter than its shape; [`Error::Mismatch`] for rows that are no
/// whole sequences; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scores: Slice<'_>,
    rows: usize,
    tokens: usize,
    plan: &KeepPlan,
) -> Result<wgpu::Buffer> {
    check_words("scores", scores.size, rows.saturating_mul(tokens))?;
    if plan.heads == 0 || !rows.is_multiple_of(plan.heads) {
        let expected = rows.next_multiple_of(plan.heads.max(1));
        let reference = "whole sequences of heads";
        return Err(Error::Mismatch { argument: "rows", got: rows, expected, reference });
    }
    let sinks = plan.sinks as u32;
    let floors = vec![plan.floor; rows];
    let counts = rec.context().upload("floors", bytemuck::cast_slice(&floors))?;
    let thresholds = select::record(rec, scores, rows, tokens, sinks, Slice::all(&counts))?;
    let budgets = rec.context().create("budgets", rows as u64 * 4)?;
    let sequences = rows / plan.heads;
    let sure = u64::from(plan.floor) * plan.heads as u64;
    let params = BudgetsParams {
        sequences: size("sequences", sequences)?,
        heads: size("heads", plan.heads)?,
        tokens: size("tokens", tokens)?,
        sinks,
        floor: plan.floor,
        rest: size("budget", plan.per_sequence.saturating_sub(sure) as usize)?,
    };
    let slices = [scores, Slice::all(&thresholds), Slice::all(&budgets)];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(sequences as u64))?;
    Ok(budgets)
}
