//! How the tokens of a sequence are shared out over its heads.

use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::nestedkv::config::check_safeguard;
use crate::nestedkv::params::BudgetsParams;
use crate::nestedkv::plan::head_floors;
use crate::primitives::cpu::scan;
use crate::primitives::gpu::{check_words, lanes, select, size};
use crate::shape::next_multiple;

/// One sequence a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/budgets",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/radix.wgsl"),
        include_str!("../../../wgsl/nestedkv/budgets.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("starts"),
        Binding::Read("floors"),
        Binding::Read("thresholds"),
        Binding::Write("budgets"),
    ],
    params: BudgetsParams::LAYOUT,
};

/// What the competition of a batch is about.
#[derive(Clone, Copy, Debug)]
pub struct Competition<'a> {
    /// Scores of all rows, one row after another.
    pub scores: Slice<'a>,
    /// `[rows + 1]` u32: row `r` has the scores from `starts[r]` to `starts[r + 1]`.
    pub starts: Slice<'a>,
    /// Length of the longest row.
    pub longest: usize,
    /// Tokens that each row is sure of.
    pub floors: &'a [u32],
    /// Rows of a sequence, which compete with each other.
    pub heads: usize,
    /// Tokens that a sequence keeps.
    pub per_sequence: u64,
    /// First tokens of each row, which have the top key.
    pub sinks: u32,
}

/// Records the budget of every row, `[rows]` u32; those of a sequence add up to `per_sequence`,
/// which must not be more than its tokens.
///
/// # Errors
/// [`Error::Empty`] for no rows; [`Error::Length`] for a slice shorter than its shape; [`Error::Mismatch`] for rows that are no
/// whole sequences, or sequences that are sure of more than they keep; as [`Recorder::dispatch`].
pub fn record(rec: &mut Recorder<'_>, of: &Competition<'_>) -> Result<wgpu::Buffer> {
    let rows = of.floors.len();
    if rows == 0 {
        return Err(Error::Empty { argument: "floors" });
    }
    if of.heads == 0 || !rows.is_multiple_of(of.heads) {
        let expected = next_multiple(rows, of.heads.max(1));
        let reference = "whole sequences of heads";
        return Err(Error::Mismatch { argument: "rows", got: rows, expected, reference });
    }
    check_words("starts", of.starts.size, rows + 1)?;
    let sequences = rows / of.heads;
    let sure = of.floors[..of.heads].iter().map(|&f| u64::from(f)).sum::<u64>();
    for floors in of.floors.chunks(of.heads) {
        let got = floors.iter().map(|&f| u64::from(f)).sum::<u64>();
        if got != sure || got > of.per_sequence {
            let (got, expected) = (got as usize, sure.min(of.per_sequence) as usize);
            let reference = "the other sequences and the tokens kept";
            return Err(Error::Mismatch { argument: "floors", got, expected, reference });
        }
    }
    let params = BudgetsParams {
        sequences: size("sequences", sequences)?,
        heads: size("heads", of.heads)?,
        sinks: of.sinks,
        rest: size("budget", (of.per_sequence - sure) as usize)?,
    };
    let floors = rec.context().upload("floors", bytemuck::cast_slice(of.floors))?;
    let floors = Slice::all(&floors);
    let thresholds = select::record(rec, of.scores, of.starts, rows, of.longest, of.sinks, floors)?;
    let budgets = rec.context().create("budgets", rows as u64 * 4)?;
    let slices = [of.scores, of.starts, floors, Slice::all(&thresholds), Slice::all(&budgets)];
    rec.dispatch(&KERNEL, &lanes(of.longest), &params, &slices, Groups(sequences as u64))?;
    Ok(budgets)
}

/// Records how `total` tokens are shared out over heads of the given lengths, whose scores lie one
/// after another in `scores`: `[heads]` u32, as
/// [`crate::nestedkv::cpu::allocate_head_budgets`] does, bit for bit.
///
/// # Errors
/// [`Error::Parameter`] for a safeguard outside 0 to 1; [`Error::Empty`] for no heads;
/// [`Error::Length`] for scores shorter than the heads; as [`Recorder::dispatch`].
pub fn allocate_head_budgets(
    rec: &mut Recorder<'_>,
    scores: Slice<'_>,
    lengths: &[usize],
    total: u64,
    safeguard: f64,
) -> Result<wgpu::Buffer> {
    check_safeguard(safeguard)?;
    if lengths.is_empty() {
        return Err(Error::Empty { argument: "heads" });
    }
    let counts = lengths.iter().map(|&n| size("tokens", n)).collect::<Result<Vec<u32>>>()?;
    let starts = scan::offsets("scores", &counts)?;
    let all = starts[lengths.len()];
    check_words("scores", scores.size, all as usize)?;
    let total = total.min(u64::from(all));
    let floors = head_floors(lengths, 1, total, safeguard);
    let starts = rec.context().upload("starts", bytemuck::cast_slice(&starts))?;
    let competition = Competition {
        scores,
        starts: Slice::all(&starts),
        longest: lengths.iter().copied().max().unwrap_or(0),
        floors: &floors,
        heads: lengths.len(),
        per_sequence: total,
        sinks: 0,
    };
    record(rec, &competition)
}
