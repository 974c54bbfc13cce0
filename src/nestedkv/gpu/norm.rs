//! Step 1: factors that bring key rows to norm 1.

use crate::error::Result;
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::NormParams;

/// 16 token rows a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/norm",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/nestedkv/norm.wgsl"),
    ),
    bindings: &[Binding::Read("keys"), Binding::Write("factors")],
    params: NormParams::LAYOUT,
};

/// Records the factors `[rows, tokens]` f32 of keys: `2^24 / max(|k|, 1e-12)`, negative where the
/// row holds NaN or Inf.
///
/// # Errors
/// As [`Recorder::dispatch`].
pub fn record(rec: &mut Recorder<'_>, keys: &DeviceTensor<'_>) -> Result<wgpu::Buffer> {
    let count = keys.rows() * keys.tokens();
    let factors = rec.context().create("factors", count as u64 * 4)?;
    let params =
        NormParams { count: count as u32, dim: keys.head_dim() as u32, dtype: keys.dtype().code() };
    let slices = [keys.slice(), Slice::all(&factors)];
    rec.dispatch(
        &KERNEL,
        &Variant::default(),
        &params,
        &slices,
        Groups(count.div_ceil(16) as u64),
    )?;
    Ok(factors)
}
