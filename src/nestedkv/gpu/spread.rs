//! Steps 4 and 5: lowest score, span and gap of every scale of every row.
//!
//! Scores become whole levels between the ends of their line, 22 bits, finer than f32 tells them apart
//! near the ends; their highest and lowest tenth end where two counts of 2,048 bins say.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::SpreadParams;
use crate::nestedkv::plan::{FLAT_SPAN, group_size};
use crate::primitives::gpu::{check_words, size};

/// Tokens of a workgroup.
const SPAN: usize = 4096;
/// Bins of a count.
const BINS: u64 = 2048;
/// Lines that have bins at once, 96 MiB of them; a multiple of 64, so that the parts of all buffers start
/// where every device can bind them.
const LINES: usize = 4096;

/// Tokens of a line that a lane takes alone.
const SHORT: usize = 32;

/// Short lines, each by one lane.
static SHORT_LINES: Kernel = Kernel {
    name: "nestedkv/spread_short",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/span.wgsl"),
        include_str!("../../../wgsl/nestedkv/spread_short.wgsl"),
    ),
    bindings: &[Binding::Read("scales"), Binding::Read("extremes"), Binding::Write("spreads")],
    params: SpreadParams::LAYOUT,
};

/// The variant of [`SHORT_LINES`].
pub(crate) fn short() -> (&'static Kernel, Variant) {
    let constants = vec![("SHORT", SHORT as u32)];
    (&SHORT_LINES, Variant { constants, overrides: Vec::new() })
}

/// Bins of all scores.
static COUNT: Kernel = Kernel {
    name: "nestedkv/spread_count",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/span.wgsl"),
        include_str!("../../../wgsl/common/ahead.wgsl"),
        include_str!("../../../wgsl/nestedkv/spread_count.wgsl"),
    ),
    bindings: &[Binding::Read("scales"), Binding::Read("extremes"), Binding::Write("counts")],
    params: SpreadParams::LAYOUT,
};

/// Finer bins of those where the groups end.
static REFINE: Kernel = Kernel {
    name: "nestedkv/spread_refine",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/span.wgsl"),
        include_str!("../../../wgsl/common/borders.wgsl"),
        include_str!("../../../wgsl/common/ahead.wgsl"),
        include_str!("../../../wgsl/nestedkv/spread_refine.wgsl"),
    ),
    bindings: &[
        Binding::Read("scales"),
        Binding::Read("extremes"),
        Binding::Read("counts"),
        Binding::Write("finer"),
        Binding::Write("beyond"),
    ],
    params: SpreadParams::LAYOUT,
};

/// The answer from both.
static SPREAD: Kernel = Kernel {
    name: "nestedkv/spread",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/common/span.wgsl"),
        include_str!("../../../wgsl/common/borders.wgsl"),
        include_str!("../../../wgsl/nestedkv/spread.wgsl"),
    ),
    bindings: &[
        Binding::Read("extremes"),
        Binding::Read("counts"),
        Binding::Read("finer"),
        Binding::Read("beyond"),
        Binding::Write("spreads"),
    ],
    params: SpreadParams::LAYOUT,
};

/// The three kernels of longer lines.
pub(crate) fn kernels() -> [&'static Kernel; 3] {
    [&COUNT, &REFINE, &SPREAD]
}

/// Records `[lines, 4]` f32 (low, span or 0, gap, 0) of raw scores `[lines, tokens]`, where a line is
/// one scale of one row, from the ends of their ranges, as [`super::anomaly`] finds both.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; [`crate::Error::Length`] for slices that are
/// too short; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scales: Slice<'_>,
    extremes: Slice<'_>,
    lines: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = size("lines", lines)?;
    let all = size("scores", lines.saturating_mul(tokens))?;
    check_words("scales", scales.size, all as usize)?;
    check_words("extremes", extremes.size, lines.saturating_mul(2))?;
    let context = rec.context();
    let spreads = context.create("spreads", u64::from(count) * 16)?;
    if tokens <= SHORT {
        let params = params_of(lines, tokens, 1)?;
        let (kernel, variant) = short();
        let slices = [scales, extremes, Slice::all(&spreads)];
        rec.dispatch(kernel, &variant, &params, &slices, Groups(lines.div_ceil(64) as u64))?;
        return Ok(spreads);
    }
    let held = lines.min(LINES);
    // New buffers hold zeros.
    let counts = context.create("bins", held as u64 * BINS * 4)?;
    let finer = context.create("finer bins", held as u64 * BINS * 8)?;
    let beyond = context.create("beyond", held as u64 * 16)?;
    let parts = tokens.div_ceil(SPAN).max(1);
    let plain = Variant::default();
    let [counts, finer, beyond] = [&counts, &finer, &beyond].map(Slice::all);
    for first in (0..lines).step_by(LINES) {
        let own = LINES.min(lines - first);
        let (scales, extremes) = (part(scales, first, own, tokens), part(extremes, first, own, 2));
        if first > 0 {
            for used in [counts, finer, beyond] {
                rec.clear(used)?;
            }
        }
        let params = params_of(own, tokens, parts)?;
        let groups = Groups((own * parts) as u64);
        rec.dispatch(&COUNT, &plain, &params, &[scales, extremes, counts], groups)?;
        let slices = [scales, extremes, counts, finer, beyond];
        rec.dispatch(&REFINE, &plain, &params, &slices, groups)?;
        let slices = [extremes, counts, finer, beyond, part(Slice::all(&spreads), first, own, 4)];
        rec.dispatch(&SPREAD, &plain, &params, &slices, Groups(own as u64))?;
    }
    Ok(spreads)
}

/// Parameters for so many lines, each in so many parts.
fn params_of(lines: usize, tokens: usize, parts: usize) -> Result<SpreadParams> {
    let by_parts = Magic::of(parts);
    Ok(SpreadParams {
        lines: lines as u32,
        tokens: size("tokens", tokens)?,
        group: group_size(tokens) as u32,
        flat: FLAT_SPAN,
        parts: parts as u32,
        parts_multiplier: by_parts.multiplier,
        parts_shift1: by_parts.shift1,
        parts_shift2: by_parts.shift2,
    })
}

/// The words of `count` lines from `first` on, of which each has so many.
fn part(slice: Slice<'_>, first: usize, count: usize, words: usize) -> Slice<'_> {
    Slice {
        buffer: slice.buffer,
        offset: slice.offset + (first * words * 4) as u64,
        size: (count * words * 4) as u64,
    }
}
