//! Step 2: mean of the normalised keys of every row.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::MeanParams;

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
/// As [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    sums: Slice<'_>,
    rows: usize,
    blocks: usize,
    dim: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = rows * dim;
    let means = rec.context().create("row means", count as u64 * 4)?;
    let by_dim = Magic::of(dim);
    let params = MeanParams {
        count: count as u32,
        dim: dim as u32,
        dim_multiplier: by_dim.multiplier,
        dim_shift1: by_dim.shift1,
        dim_shift2: by_dim.shift2,
        blocks: blocks as u32,
        tokens: tokens as f32,
    };
    let slices = [sums, Slice::all(&means)];
    rec.dispatch(
        &KERNEL,
        &Variant::default(),
        &params,
        &slices,
        Groups(count.div_ceil(64) as u64),
    )?;
    Ok(means)
}
