//! Prepares queries. Twin: `src/attention/cpu/rotate.rs`.

use super::view::DeviceQueries;
use super::{hadamard_variant, hadamard_variants};
use crate::attention::params::RotateParams;
use crate::attention::plan::{Firsts, Plan};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::layout::PageLayout;
use crate::nsnquant::Hadamard;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/rotate",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/attention/rotate.wgsl"),
    ),
    bindings: &[Binding::Read("queries"), Binding::Read("firsts"), Binding::Write("prepared")],
    params: RotateParams::LAYOUT,
};

pub(super) fn variants() -> Vec<Variant> {
    hadamard_variants()
}

/// Numbers that lie on the device, one a member of the batch, and what is added to each to give the
/// position of the member's first query token.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceFirsts<'a> {
    pub(super) numbers: Slice<'a>,
    pub(super) plus: u32,
}

/// Records the preparation of all queries for packed keys of a layout, if there are any: `[queries, 2 * head_dim_k + 4]`, the scaled query, `H`
/// times it, how dot products with it become logits, and the last position that it sees.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    queries: &DeviceQueries<'_>,
    firsts: Option<DeviceFirsts<'_>>,
    packed: Option<&PageLayout>,
) -> Result<wgpu::Buffer> {
    let stride = 2 * plan.head_dim_k as u64 + 4;
    let size = (plan.queries() as u64).saturating_mul(4 * stride);
    let prepared = rec.context().create("wgkv attention queries", size)?;
    let member = plan.kv_heads * plan.per_row;
    let [by_tokens, by_member] = [plan.tokens, member].map(Magic::of);
    let first = match (&firsts, &plan.firsts) {
        (Some(firsts), _) => firsts.plus,
        (None, Firsts::One(first)) => *first,
        _ => 0,
    };
    let params = RotateParams {
        queries: plan.queries() as u32,
        dtype: queries.dtype.code(),
        packed: u32::from(packed.is_some()),
        hadamard_scale: Hadamard::new("head_dim_k", plan.head_dim_k)?.scale(),
        scale: plan.scale,
        limit: plan.limit,
        tokens: plan.tokens as u32,
        member: member as u32,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        member_multiplier: by_member.multiplier,
        member_shift1: by_member.shift1,
        member_shift2: by_member.shift2,
        causal: u32::from(plan.causal()),
        first,
        own: u32::from(firsts.is_some()),
    };
    let numbers = firsts.map_or(queries.data, |firsts| firsts.numbers);
    rec.dispatch(
        &KERNEL,
        &hadamard_variant(plan.head_dim_k, packed.and_then(|keys| keys.scheme().signs))?,
        &params,
        &[queries.data, numbers, Slice::all(&prepared)],
        Groups(plan.queries() as u64),
    )?;
    Ok(prepared)
}
