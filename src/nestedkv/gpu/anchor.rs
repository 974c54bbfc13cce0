//! Step 2: sums of normalised keys over segments of the rows.

use crate::error::Result;
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AnchorParams;

/// One segment and up to 128 channels a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/anchor",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/unit_key.wgsl"),
        include_str!("../../../wgsl/nestedkv/anchor.wgsl"),
    ),
    bindings: &[Binding::Read("keys"), Binding::Read("factors"), Binding::Write("sums")],
    params: AnchorParams::LAYOUT,
};

/// Records the sums over segments of `segment` tokens: `[rows, segments, head_dim]` f32.
///
/// # Errors
/// As [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    factors: Slice<'_>,
    segment: usize,
) -> Result<wgpu::Buffer> {
    let segments = keys.tokens().div_ceil(segment);
    let lines = (keys.rows() * segments) as u64;
    let sums = rec.context().create("segment sums", lines * keys.head_dim() as u64 * 4)?;
    let groups = keys.head_dim().div_ceil(128);
    let by_segments = Magic::of(segments);
    let by_groups = Magic::of(groups);
    let params = AnchorParams {
        rows: keys.rows() as u32,
        tokens: keys.tokens() as u32,
        dim: keys.head_dim() as u32,
        dtype: keys.dtype().code(),
        segment: segment as u32,
        segments: segments as u32,
        segments_multiplier: by_segments.multiplier,
        segments_shift1: by_segments.shift1,
        segments_shift2: by_segments.shift2,
        groups: groups as u32,
        groups_multiplier: by_groups.multiplier,
        groups_shift1: by_groups.shift1,
        groups_shift2: by_groups.shift2,
    };
    let slices = [keys.slice(), factors, Slice::all(&sums)];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(lines * groups as u64))?;
    Ok(sums)
}
