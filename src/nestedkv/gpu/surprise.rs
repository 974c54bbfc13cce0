//! Step 7: lowest deviation, span and mean of every row.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::nestedkv::params::SurpriseParams;
use crate::nestedkv::plan::FLAT_SPAN;
use crate::primitives::gpu::{lanes, size};

/// One row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/surprise",
    source: concat!(
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/nestedkv/surprise.wgsl"),
    ),
    bindings: &[Binding::Read("deviations"), Binding::Write("surprises")],
    params: SurpriseParams::LAYOUT,
};

/// Records `[rows, 4]` f32 (low, span or 0, mean above the lowest, 0) of deviations
/// `[rows, tokens]`.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    deviations: Slice<'_>,
    rows: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = size("rows", rows)?;
    let surprises = rec.context().create("surprises", u64::from(count) * 16)?;
    let params = SurpriseParams { rows: count, tokens: size("tokens", tokens)?, flat: FLAT_SPAN };
    let slices = [deviations, Slice::all(&surprises)];
    rec.dispatch(&KERNEL, &lanes(tokens), &params, &slices, Groups(rows as u64))?;
    Ok(surprises)
}
