//! Prepares queries. Twin: `src/attention/cpu/rotate.rs`.

use super::view::DeviceQueries;
use super::{HADAMARD_LANES, hadamard_variant, hadamard_variants};
use crate::attention::params::RotateParams;
use crate::attention::plan::{Firsts, Plan};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::layout::pool::{PageClass, PoolLayout};
use crate::layout::{MeanDomain, PIECE, PageLayout};
use crate::nsnquant::Hadamard;
use crate::shape::check_count;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/rotate",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/hadamard_pair.wgsl"),
        include_str!("../../../wgsl/common/key_scale.wgsl"),
        include_str!("../../../wgsl/attention/rotate.wgsl"),
    ),
    bindings: &[
        Binding::Read("queries"),
        Binding::Read("firsts"),
        Binding::Read("key_scales"),
        Binding::Read("lists"),
        Binding::Write("prepared"),
    ],
    params: RotateParams::LAYOUT,
};

pub(super) fn variants() -> Vec<Variant> {
    hadamard_variants(lanes)
}

/// Invocations of a workgroup: one a pair of channels.
fn lanes(head_dim: usize) -> u32 {
    (head_dim as u32 / 2).next_multiple_of(32).max(HADAMARD_LANES)
}

/// Numbers that lie on the device, one a member of the batch, and what is added to each to give the
/// position of the member's first query token.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceFirsts<'a> {
    pub(super) numbers: Slice<'a>,
    pub(super) plus: u32,
}

/// Key scales of the rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scales<'a> {
    /// f16 `[rows, head_dim_k]`.
    Rows(Slice<'a>),
    /// In the sink pages of the rows, which are listed from a place on, in the slab of a number.
    Sinks { layout: &'a PoolLayout, slab: (u32, Slice<'a>), lists: Slice<'a>, at: u32 },
}

/// Queries ready for use: `[queries, 2 * head_dim_k + 4]`, the query at its fixed size, `H` times it,
/// how dot products with it become logits, and the last position that it sees.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) buffer: wgpu::Buffer,
    /// Word where `H` times the queries under the key scales of their rows start, `[queries,
    /// head_dim_k]`; 0 where there are none.
    pub(super) scaled_at: u32,
    /// Word where the bytes of queries for products of integers start; 0 where there are none.
    pub(super) bytes_at: u32,
}

/// Records the preparation of all queries for packed keys of a layout, if there are any, under the
/// key scales of the rows, if there are any.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    queries: &DeviceQueries<'_>,
    firsts: Option<DeviceFirsts<'_>>,
    packed: Option<&PageLayout>,
    key_scales: Option<Scales<'_>>,
) -> Result<Prepared> {
    let stride = 2 * plan.head_dim_k as u64 + 4;
    let scaled = key_scales.filter(|_| packed.is_some());
    let scaled_words = if scaled.is_some() { plan.head_dim_k } else { 0 };
    let integers = rec.context().integer_dots() && plan.head_dim_k.is_multiple_of(PIECE);
    let bytes = packed.filter(|_| integers);
    let bytes_words = if bytes.is_some() { 3 * plan.head_dim_k / 4 + 4 } else { 0 };
    // Where what has so many words a query before it starts.
    let after = |words: usize| -> Result<u32> {
        Ok(check_count("prepared queries", &[plan.queries(), words])? as u32)
    };
    let scaled_at = if scaled.is_some() { after(stride as usize)? } else { 0 };
    let bytes_at = if bytes.is_some() { after(stride as usize + scaled_words)? } else { 0 };
    let words = stride + (scaled_words + bytes_words) as u64;
    let size = (plan.queries() as u64).saturating_mul(4 * words);
    let buffer = rec.context().create("wgkv attention queries", size)?;
    let member = plan.kv_heads * plan.per_row;
    let [by_tokens, by_member, by_row] = [plan.tokens, member, plan.per_row].map(Magic::of);
    let first = match (&firsts, &plan.firsts) {
        (Some(firsts), _) => firsts.plus,
        (None, Firsts::One(first)) => *first,
        _ => 0,
    };
    let mut params = RotateParams {
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
        scaled_at,
        bytes_at,
        turned: u32::from(bytes.is_some_and(|keys| keys.scheme().mean == MeanDomain::Hadamard)),
        row_multiplier: by_row.multiplier,
        row_shift1: by_row.shift1,
        row_shift2: by_row.shift2,
        ..RotateParams::default()
    };
    let (scales, lists) = match scaled {
        None => (queries.data, queries.data),
        Some(Scales::Rows(rows)) => (rows, queries.data),
        Some(Scales::Sinks { layout, slab: (number, slab), lists, at }) => {
            let class = PageClass::Sink;
            params.sinks_at = at;
            params.sink_shift = layout.shift(class);
            params.sink_mask = (1 << layout.shift(class)) - 1;
            params.sink_slab = number;
            params.sink_pages = layout.pages_per_slab(class);
            params.sink_words = layout.words(class) as u32;
            params.sink_offset = layout.scale_offset() as u32;
            (slab, lists)
        }
    };
    let numbers = firsts.map_or(queries.data, |firsts| firsts.numbers);
    rec.dispatch(
        &KERNEL,
        &hadamard_variant(
            lanes(plan.head_dim_k),
            plan.head_dim_k,
            packed.and_then(|keys| keys.scheme().signs),
        )?,
        &params,
        &[queries.data, numbers, scales, lists, Slice::all(&buffer)],
        Groups(plan.queries() as u64),
    )?;
    Ok(Prepared { buffer, scaled_at, bytes_at })
}
