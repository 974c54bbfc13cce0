//! Step 2: mean of the normalised keys of every row.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::MeanParams;
use crate::primitives::gpu::size;

/// One channel of one row a lane.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/mean",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/nestedkv/mean.wgsl"),
    ),
    bindings: &[Binding::Read("sums"), Binding::Write("means")],
    params: MeanParams::LAYOUT,
};

/// Records the means `[rows, dim]` f32 from the sums of [`super::anchor`] over `blocks` blocks of
/// rows of `tokens` tokens.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    sums: Slice<'_>,
    rows: usize,
    blocks: usize,
    dim: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = size("row means", rows.saturating_mul(dim))?;
    let means = rec.context().create("row means", u64::from(count) * 4)?;
    let by_dim = Magic::of(dim);
    let params = MeanParams {
        count,
        dim: size("dim", dim)?,
        dim_multiplier: by_dim.multiplier,
        dim_shift1: by_dim.shift1,
        dim_shift2: by_dim.shift2,
        blocks: size("blocks", blocks)?,
        tokens: tokens as f32,
    };
    let slices = [sums, Slice::all(&means)];
    rec.dispatch(
        &KERNEL,
        &Variant::default(),
        &params,
        &slices,
        Groups(u64::from(count).div_ceil(64)),
    )?;
    Ok(means)
}
