//! How the tokens of a sequence are shared out over its heads.

use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::config::check_safeguard;
use crate::nestedkv::params::BudgetsParams;
use crate::nestedkv::plan::head_floors;
use crate::primitives::cpu::scan;
use crate::primitives::gpu::{SPAN, check_words, select, size};
use crate::shape::next_multiple;

/// What every row has above the border of its sequence.
static COUNT: Kernel = Kernel {
    name: "nestedkv/budgets_count",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/bins.wgsl"),
        include_str!("../../../wgsl/nestedkv/budgets_count.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("starts"),
        Binding::Read("sure"),
        Binding::Read("states"),
        Binding::Read("earlier"),
        Binding::Write("tallies"),
    ],
    params: BudgetsParams::LAYOUT,
};

/// One sequence a workgroup.
static BUDGETS: Kernel = Kernel {
    name: "nestedkv/budgets",
    source: concat!(
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/bins.wgsl"),
        include_str!("../../../wgsl/nestedkv/budgets.wgsl"),
    ),
    bindings: &[
        Binding::Read("floors"),
        Binding::Read("sure"),
        Binding::Read("states"),
        Binding::Read("earlier"),
        Binding::Read("tallies"),
        Binding::Write("budgets"),
        Binding::Write("thresholds"),
    ],
    params: BudgetsParams::LAYOUT,
};

/// Both kernels.
pub(super) fn kernels() -> [&'static Kernel; 2] {
    [&COUNT, &BUDGETS]
}

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

/// How a batch shares its budgets.
#[derive(Clone, Debug)]
pub struct Shared {
    /// `[rows]` u32; those of a sequence add up to what it keeps.
    pub budgets: wgpu::Buffer,
    /// `[rows, 4]` u32 (key, ties taken, 0, 0): the thresholds that take as many tokens of every row.
    pub thresholds: wgpu::Buffer,
}

/// Records the budget of every row (arXiv 2605.26678, appendix A); those of a sequence add up to
/// `per_sequence`, which must not be more than its tokens.
///
/// # Errors
/// [`Error::Empty`] for no rows; [`Error::Length`] for a slice shorter than its shape; [`Error::Mismatch`] for rows that are no
/// whole sequences, or sequences that are sure of more than they keep; as [`Recorder::dispatch`].
pub fn record(rec: &mut Recorder<'_>, of: &Competition<'_>) -> Result<Shared> {
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
    let rest = size("budget", (of.per_sequence - sure) as usize)?;
    let parts = of.longest.div_ceil(SPAN).max(1);
    let (by_heads, by_parts) = (Magic::of(of.heads), Magic::of(parts));
    let params = BudgetsParams {
        rows: 0,
        longest: size("longest", of.longest)?,
        sinks: of.sinks,
        rest,
        heads: of.heads as u32,
        heads_multiplier: by_heads.multiplier,
        heads_shift1: by_heads.shift1,
        heads_shift2: by_heads.shift2,
        parts: parts as u32,
        parts_multiplier: by_parts.multiplier,
        parts_shift1: by_parts.shift1,
        parts_shift2: by_parts.shift2,
    };
    let context = rec.context();
    let floors = context.upload("floors", bytemuck::cast_slice(of.floors))?;
    let ranks = context.upload("ranks", bytemuck::cast_slice(&vec![rest; sequences]))?;
    let budgets = context.create("budgets", rows as u64 * 4)?;
    let thresholds = context.create("thresholds", rows as u64 * 16)?;
    // A new buffer holds zeros.
    let tallies = context.create("tallies", rows as u64 * 8)?;
    let [floors, ranks, tallies] = [&floors, &ranks, &tallies].map(Slice::all);
    let Competition { scores, starts, longest, sinks, .. } = *of;
    let sure = select::record(rec, scores, starts, rows, longest, sinks, floors)?;
    let sure = Slice::all(&sure);
    let [budgets_all, thresholds_all] = [&budgets, &thresholds].map(Slice::all);
    let scratch = select::Scratch::new(rec, sequences.min(select::ROWS) as u64)?;
    let (states, bins) = (Slice::all(&scratch.states), Slice::all(&scratch.steps[2]));
    let plain = Variant::default();
    for first in (0..sequences).step_by(select::ROWS) {
        let own = select::ROWS.min(sequences - first);
        if first > 0 {
            scratch.clear(rec)?;
        }
        let (row, rows) = (first * of.heads, own * of.heads);
        let [starts, ranks, floors] = [
            select::part(starts, row, rows + 1),
            select::part(ranks, first, own),
            select::part(floors, row, rows),
        ];
        let [sure, thresholds] =
            [sure, thresholds_all].map(|words| select::part(words, 4 * row, 4 * rows));
        let tallies = select::part(tallies, 2 * row, 2 * rows);
        let budgets = select::part(budgets_all, row, rows);
        let params = BudgetsParams { rows: size("rows", rows)?, ..params };
        let ragged = select::Ragged { scores, starts, rows, longest, sinks };
        select::count(rec, &ragged, ranks, Some((sure, of.heads)), &scratch)?;
        let slices = [scores, starts, sure, states, bins, tallies];
        rec.dispatch(&COUNT, &plain, &params, &slices, Groups((rows * parts) as u64))?;
        let slices = [floors, sure, states, bins, tallies, budgets, thresholds];
        rec.dispatch(&BUDGETS, &plain, &params, &slices, Groups(own as u64))?;
    }
    Ok(Shared { budgets, thresholds })
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
    Ok(record(rec, &competition)?.budgets)
}
