//! Prepares queries. Twin: `src/attention/cpu/rotate.rs`.

use super::view::{DevicePackedView, DeviceQueries};
use super::{hadamard_variant, head_dims};
use crate::attention::params::RotateParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nsnquant::Hadamard;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/rotate",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/attention/rotate.wgsl"),
    ),
    bindings: &[Binding::Read("queries"), Binding::Write("prepared")],
    params: RotateParams::LAYOUT,
};

pub(super) fn variants() -> Vec<Variant> {
    head_dims().filter_map(|dim| hadamard_variant(dim).ok()).collect()
}

/// Records the preparation of all queries: `[queries, 2 * head_dim_k + 4]`, the scaled query, `H`
/// times it, and how dot products with it become logits.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    queries: &DeviceQueries<'_>,
    packed: Option<&DevicePackedView<'_>>,
) -> Result<wgpu::Buffer> {
    let stride = 2 * plan.head_dim_k as u64 + 4;
    let size = (plan.queries() as u64).saturating_mul(4 * stride);
    let prepared = rec.context().create("wgkv attention queries", size)?;
    let params = RotateParams {
        queries: plan.queries() as u32,
        dtype: queries.dtype.code(),
        packed: u32::from(packed.is_some_and(|packed| packed.pages > 0)),
        hadamard_scale: Hadamard::new("head_dim_k", plan.head_dim_k)?.scale(),
        scale: plan.scale,
        limit: plan.limit,
    };
    rec.dispatch(
        &KERNEL,
        &hadamard_variant(plan.head_dim_k)?,
        &params,
        &[queries.data, Slice::all(&prepared)],
        Groups(plan.queries() as u64),
    )?;
    Ok(prepared)
}
