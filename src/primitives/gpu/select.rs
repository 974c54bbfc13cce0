//! Threshold of the highest keys of every row: three counts of bins over many workgroups, each of which
//! first finds out what the count before says, and the answer.

use super::{SPAN, check_words, size};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::primitives::params::{SelectCountParams, SelectParams, SelectShortParams};

/// One step over all rows.
static COUNT: Kernel = Kernel {
    name: "primitives/select_count",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/bins.wgsl"),
        include_str!("../../../wgsl/primitives/select_count.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("starts"),
        Binding::Read("ranks"),
        Binding::Read("sure"),
        Binding::Write("states"),
        Binding::Read("earlier"),
        Binding::Write("bins"),
    ],
    params: SelectCountParams::LAYOUT,
};

/// The answer.
static SELECT: Kernel = Kernel {
    name: "primitives/select",
    source: concat!(
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/bins.wgsl"),
        include_str!("../../../wgsl/primitives/select.wgsl"),
    ),
    bindings: &[
        Binding::Read("starts"),
        Binding::Read("counts"),
        Binding::Read("states"),
        Binding::Read("earlier"),
        Binding::Write("thresholds"),
    ],
    params: SelectParams::LAYOUT,
};

/// Tokens of a row that a lane takes alone.
const SHORT: usize = 32;

/// Short rows, each by one lane.
static SHORT_ROWS: Kernel = Kernel {
    name: "primitives/select_short",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/primitives/select_short.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("starts"),
        Binding::Read("counts"),
        Binding::Write("thresholds"),
    ],
    params: SelectShortParams::LAYOUT,
};

/// The kernel of short rows and its variant.
pub(super) fn short() -> (&'static Kernel, Variant) {
    let constants = vec![("SHORT", SHORT as u32)];
    (&SHORT_ROWS, Variant { constants, overrides: Vec::new() })
}

/// Both kernels of longer rows.
pub(super) fn kernels() -> [&'static Kernel; 2] {
    [&COUNT, &SELECT]
}

/// Scores of rows that lie one after another, row `r` from `starts[r]` to `starts[r + 1]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ragged<'a> {
    pub scores: Slice<'a>,
    pub starts: Slice<'a>,
    pub rows: usize,
    pub longest: usize,
    pub sinks: u32,
}

/// Lines that have bins at once, 32 MiB of them a step; a multiple of 64, so that the parts of all buffers
/// start where every device can bind them.
pub(crate) const ROWS: usize = 4096;

/// States of the three steps of a radix select (`wgsl/common/bins.wgsl`) and bins of each.
pub(crate) struct Scratch {
    pub states: wgpu::Buffer,
    pub steps: [wgpu::Buffer; 3],
}

impl Scratch {
    /// Of so many lines, all zeros, as new buffers are.
    pub(crate) fn new(rec: &Recorder<'_>, lines: u64) -> Result<Self> {
        let states = rec.context().create("select states", lines * 3 * 16)?;
        let make = || rec.context().create("select bins", lines * 2048 * 4);
        Ok(Self { states, steps: [make()?, make()?, make()?] })
    }

    pub(crate) fn clear(&self, rec: &mut Recorder<'_>) -> Result<()> {
        self.steps.iter().chain([&self.states]).try_for_each(|used| rec.clear(Slice::all(used)))
    }
}

/// Records the three counts for the rank that `ranks` has for every line: a row, or, with thresholds of
/// what is taken already, the `heads` rows of a sequence. The scratch holds zeros before.
pub(crate) fn count(
    rec: &mut Recorder<'_>,
    rows: &Ragged<'_>,
    ranks: Slice<'_>,
    compete: Option<(Slice<'_>, usize)>,
    scratch: &Scratch,
) -> Result<()> {
    let Ragged { scores, starts, rows, longest, sinks } = *rows;
    let Scratch { states, steps } = scratch;
    let heads = compete.map_or(1, |(_, heads)| heads);
    let parts = longest.div_ceil(SPAN).max(1);
    let (by_heads, by_parts) = (Magic::of(heads), Magic::of(parts));
    // Where no rows compete, thresholds are bound but not read.
    let unused = rec.context().create("no thresholds", 16)?;
    let sure = compete.map_or(Slice::all(&unused), |(sure, _)| sure);
    for step in 0..3u32 {
        let params = SelectCountParams {
            rows: rows as u32,
            longest: size("longest", longest)?,
            sinks,
            step,
            compete: u32::from(compete.is_some()),
            heads: heads as u32,
            heads_multiplier: by_heads.multiplier,
            heads_shift1: by_heads.shift1,
            heads_shift2: by_heads.shift2,
            parts: parts as u32,
            parts_multiplier: by_parts.multiplier,
            parts_shift1: by_parts.shift1,
            parts_shift2: by_parts.shift2,
        };
        // The first step has none before it.
        let earlier = Slice::all(&steps[(step as usize + 2) % 3]);
        let bins = Slice::all(&steps[step as usize]);
        let slices = [scores, starts, ranks, sure, Slice::all(states), earlier, bins];
        let groups = Groups(rows as u64 * parts as u64);
        rec.dispatch(&COUNT, &Variant::default(), &params, &slices, groups)?;
    }
    Ok(())
}

/// Records the thresholds of the `counts[row]` highest scores of rows that lie one after another, row
/// `r` from `starts[r]` to `starts[r + 1]`: `[rows, 4]` words (key, ties taken, keys equal, keys
/// above), as [`crate::primitives::cpu::select::Threshold`]. The first `sinks` tokens of a row have
/// the top key. Counts beyond the tokens of a row count as these. The caller answers for starts
/// within the scores; others read what is not there as any value, never outside. No row may be
/// longer than `longest`.
///
/// # Errors
/// [`crate::Error::Length`] for a slice shorter than its shape; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scores: Slice<'_>,
    starts: Slice<'_>,
    rows: usize,
    longest: usize,
    sinks: u32,
    counts: Slice<'_>,
) -> Result<wgpu::Buffer> {
    check_words("starts", starts.size, rows.saturating_add(1))?;
    check_words("counts", counts.size, rows)?;
    let longest_of = size("longest", longest)?;
    let thresholds = rec.context().create("thresholds", u64::from(size("rows", rows)?) * 16)?;
    if longest <= SHORT {
        let params = SelectShortParams { rows: rows as u32, longest: longest_of, sinks };
        let slices = [scores, starts, counts, Slice::all(&thresholds)];
        let (kernel, variant) = short();
        rec.dispatch(kernel, &variant, &params, &slices, Groups(rows.div_ceil(64) as u64))?;
        return Ok(thresholds);
    }
    let scratch = Scratch::new(rec, rows.min(ROWS) as u64)?;
    for first in (0..rows).step_by(ROWS) {
        let own = ROWS.min(rows - first);
        if first > 0 {
            scratch.clear(rec)?;
        }
        let starts = part(starts, first, own + 1);
        let counts = part(counts, first, own);
        let ragged = Ragged { scores, starts, rows: own, longest, sinks };
        count(rec, &ragged, counts, None, &scratch)?;
        let params = SelectParams { rows: own as u32, longest: longest_of };
        let states = Slice::all(&scratch.states);
        let bins = Slice::all(&scratch.steps[2]);
        let answers = part(Slice::all(&thresholds), 4 * first, 4 * own);
        let slices = [starts, counts, states, bins, answers];
        rec.dispatch(&SELECT, &Variant::default(), &params, &slices, Groups(own as u64))?;
    }
    Ok(thresholds)
}

/// So many words from one on.
pub(crate) fn part(slice: Slice<'_>, first: usize, words: usize) -> Slice<'_> {
    let (offset, size) = (slice.offset + 4 * first as u64, 4 * words as u64);
    Slice { buffer: slice.buffer, offset, size }
}
