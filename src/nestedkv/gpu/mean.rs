//! Step 2: mean of the normalised keys of every row.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::MeanParams;
use crate::primitives::gpu::{check_words, size};

/// 32 channels of a row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/mean",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/nestedkv/mean.wgsl"),
    ),
    bindings: &[Binding::Read("sums"), Binding::Write("means")],
    params: MeanParams::LAYOUT,
};

/// Records the means of the rows (step 2) `[rows, dim]` f32 from the sums of [`super::anchor`] over `runs` runs of rows of
/// `tokens` tokens.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; [`crate::Error::Length`] for too few sums; as
/// [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    sums: Slice<'_>,
    rows: usize,
    runs: usize,
    dim: usize,
    tokens: usize,
) -> Result<wgpu::Buffer> {
    let count = size("row means", rows.saturating_mul(dim))?;
    let parts = size("run sums", rows.saturating_mul(runs).saturating_mul(dim))?;
    check_words("sums", sums.size, parts as usize)?;
    let means = rec.context().create("row means", u64::from(count) * 4)?;
    let groups = dim.div_ceil(32);
    let by_groups = Magic::of(groups);
    let params = MeanParams {
        rows: size("rows", rows)?,
        dim: size("dim", dim)?,
        runs: size("runs", runs)?,
        tokens: tokens as f32,
        groups: size("groups", groups)?,
        groups_multiplier: by_groups.multiplier,
        groups_shift1: by_groups.shift1,
        groups_shift2: by_groups.shift2,
    };
    let slices = [sums, Slice::all(&means)];
    let groups = Groups((rows * groups) as u64);
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, groups)?;
    Ok(means)
}
