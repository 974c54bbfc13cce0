//! Positions of the keys that thresholds take.

use super::{check_words, lanes, size};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::primitives::params::CompactParams;

/// Ordered compaction of one row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "primitives/compact",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/primitives/compact.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("thresholds"),
        Binding::Read("offsets"),
        Binding::Write("positions"),
        Binding::Write("sources"),
    ],
    params: CompactParams::LAYOUT,
};

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
    let params = CompactParams {
        rows: size("rows", rows)?,
        tokens: size("tokens", tokens)?,
        sinks,
        total: size("kept tokens", total as usize)?,
    };
    let positions = rec.context().create("positions", total * 4)?;
    let sources = rec.context().create("sources", total * 4)?;
    rec.dispatch(
        &KERNEL,
        &lanes(tokens),
        &params,
        &[scores, thresholds, offsets, Slice::all(&positions), Slice::all(&sources)],
        Groups(if total == 0 { 0 } else { rows as u64 }),
    )?;
    Ok(Compacted { positions, sources })
}
