//! Offsets from counts.

use super::{check_words, size};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::primitives::params::ScanParams;

/// Running sums in one workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "primitives/scan",
    source: concat!(
        include_str!("../../../wgsl/common/prefix.wgsl"),
        include_str!("../../../wgsl/primitives/scan.wgsl"),
    ),
    bindings: &[Binding::Read("counts"), Binding::Write("offsets")],
    params: ScanParams::LAYOUT,
};

/// Records the running sums of `counts` words: `count + 1` words, from 0 to the total, which must
/// not exceed `u32::MAX`.
///
/// # Errors
/// [`crate::Error::Length`] for too few counts; [`crate::Error::Empty`] for none; as
/// [`Recorder::dispatch`].
pub fn record(rec: &mut Recorder<'_>, counts: Slice<'_>, count: usize) -> Result<wgpu::Buffer> {
    if count == 0 {
        return Err(crate::Error::Empty { argument: "counts" });
    }
    check_words("counts", counts.size, count)?;
    let params = ScanParams { count: size("counts", count)? };
    let offsets = rec.context().create("offsets", (count as u64 + 1) * 4)?;
    let slices = [counts, Slice::all(&offsets)];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(1))?;
    Ok(offsets)
}
