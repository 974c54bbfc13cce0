//! Steps 4 and 5: lowest score, span and gap of every scale of every row.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::nestedkv::params::SpreadParams;
use crate::nestedkv::plan::{FLAT_SPAN, group_size};
use crate::primitives::gpu::{lanes, size};

/// One scale of one row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/spread",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/radix.wgsl"),
        include_str!("../../../wgsl/nestedkv/spread.wgsl"),
    ),
    bindings: &[Binding::Read("scales"), Binding::Write("spreads")],
    params: SpreadParams::LAYOUT,
};

/// Records `[lines, 4]` f32 (low, span or 0, gap, 0) of raw scores `[lines, tokens]`, where a line is
/// one scale of one row.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scales: Slice<'_>,
    lines: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = size("lines", lines)?;
    let spreads = rec.context().create("spreads", u64::from(count) * 16)?;
    let params = SpreadParams {
        lines: count,
        tokens: size("tokens", tokens)?,
        group: group_size(tokens) as u32,
        flat: FLAT_SPAN,
    };
    let slices = [scales, Slice::all(&spreads)];
    rec.dispatch(&KERNEL, &lanes(tokens), &params, &slices, Groups(lines as u64))?;
    Ok(spreads)
}
