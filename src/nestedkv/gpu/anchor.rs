//! Step 2: sums of normalised keys over segments of the rows.

use crate::error::{Error, Result};
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AnchorParams;
use crate::nestedkv::plan::SHORT_SUM;

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

/// Records the sums over segments of `segment` tokens: `[rows, segments, head_dim]` i32, in multiples
/// of `1 / GRID`.
///
/// # Errors
/// [`Error::OutOfRange`] for a segment of none or more than [`SHORT_SUM`] tokens; as
/// [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    factors: Slice<'_>,
    segment: usize,
) -> Result<wgpu::Buffer> {
    if !(1..=SHORT_SUM).contains(&segment) {
        let (got, max) = (segment as u64, SHORT_SUM as u64);
        return Err(Error::OutOfRange { argument: "segment", got, min: 1, max });
    }
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
