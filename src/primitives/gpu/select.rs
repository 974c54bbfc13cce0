//! Threshold of the highest keys of every row.

use super::{check_words, lanes, size};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::primitives::params::SelectParams;

/// Four passes of radix select.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "primitives/select",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/radix.wgsl"),
        include_str!("../../../wgsl/primitives/select.wgsl"),
    ),
    bindings: &[
        Binding::Read("scores"),
        Binding::Read("starts"),
        Binding::Read("counts"),
        Binding::Write("thresholds"),
    ],
    params: SelectParams::LAYOUT,
};

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
    let params =
        SelectParams { rows: size("rows", rows)?, longest: size("longest", longest)?, sinks };
    let thresholds = rec.context().create("thresholds", rows as u64 * 16)?;
    rec.dispatch(
        &KERNEL,
        &lanes(longest),
        &params,
        &[scores, starts, counts, Slice::all(&thresholds)],
        Groups(rows as u64),
    )?;
    Ok(thresholds)
}
