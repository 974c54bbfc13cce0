//! Positions of the keys that thresholds take.

use super::{SPAN, check_words, size};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::primitives::params::CompactParams;

/// What every part of a row takes.
static COUNT: Kernel = Kernel {
    name: "primitives/compact_count",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/primitives/compact_count.wgsl"),
    ),
    bindings: &[Binding::Read("scores"), Binding::Read("thresholds"), Binding::Write("parts")],
    params: CompactParams::LAYOUT,
};

/// Ordered compaction of a part of a row.
static COMPACT: Kernel = Kernel {
    name: "primitives/compact",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/primitives/compact.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("thresholds"),
        Binding::Read("offsets"),
        Binding::Read("counted"),
        Binding::Write("positions"),
        Binding::Write("sources"),
    ],
    params: CompactParams::LAYOUT,
};

/// Both kernels.
pub(super) fn kernels() -> [&'static Kernel; 2] {
    [&COUNT, &COMPACT]
}

/// Positions and token rows of what is taken, `[total]` words each.
#[derive(Clone, Debug)]
pub struct Compacted {
    /// Position within its row.
    pub positions: wgpu::Buffer,
    /// Token row counted over all rows: `row * tokens + position`.
    pub sources: wgpu::Buffer,
}

/// Records the positions that `thresholds` (of [`super::select`]) take from scores
/// `[rows, tokens]`, ascending, those of row `r` from `offsets[r]` on; `total` in all, at least 1.
///
/// # Errors
/// [`crate::Error::Length`] for a slice shorter than its shape; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scores: Slice<'_>,
    rows: usize,
    tokens: usize,
    sinks: u32,
    thresholds: Slice<'_>,
    offsets: Slice<'_>,
    total: u64,
) -> Result<Compacted> {
    check_words("scores", scores.size, rows.saturating_mul(tokens))?;
    check_words("thresholds", thresholds.size, rows.saturating_mul(4))?;
    check_words("offsets", offsets.size, rows.saturating_add(1))?;
    let parts = tokens.div_ceil(SPAN).max(1);
    let by_parts = Magic::of(parts);
    let params = CompactParams {
        rows: size("rows", rows)?,
        tokens: size("tokens", tokens)?,
        sinks,
        total: size("kept tokens", total as usize)?,
        parts: parts as u32,
        parts_multiplier: by_parts.multiplier,
        parts_shift1: by_parts.shift1,
        parts_shift2: by_parts.shift2,
    };
    let positions = rec.context().create("positions", total * 4)?;
    let sources = rec.context().create("sources", total * 4)?;
    let counted = rec.context().create("compact parts", (rows * parts) as u64 * 4)?;
    let groups = Groups(if total == 0 { 0 } else { (rows * parts) as u64 });
    let plain = Variant::default();
    if parts > 1 {
        let slices = [scores, thresholds, Slice::all(&counted)];
        rec.dispatch(&COUNT, &plain, &params, &slices, groups)?;
    }
    let outputs = [&counted, &positions, &sources].map(Slice::all);
    let slices = [scores, thresholds, offsets, outputs[0], outputs[1], outputs[2]];
    rec.dispatch(&COMPACT, &plain, &params, &slices, groups)?;
    Ok(Compacted { positions, sources })
}
