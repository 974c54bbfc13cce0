//! Partial states over raw tokens. Twin: `src/attention/cpu/raw.rs`.

use super::view::DeviceCacheView;
use super::{Partials, blocks, head_dims, positions, splits};
use crate::attention::params::RawParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/raw",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/attention/raw.wgsl"),
    ),
    bindings: &[
        Binding::Read("prepared"),
        Binding::Read("offsets"),
        Binding::Read("keys"),
        Binding::Read("values"),
        Binding::Read("positions"),
        Binding::Write("partials"),
    ],
    params: RawParams::LAYOUT,
};

/// Invocations of a workgroup and tokens of a tile.
const LANES: usize = 128;

pub(super) fn variants() -> Vec<Variant> {
    head_dims().map(variant).collect()
}

fn variant(head_dim: usize) -> Variant {
    Variant { constants: vec![("HEAD_DIM", head_dim as u32)], overrides: Vec::new() }
}

/// Records the partial states `[queries, splits, head_dim_v + 2]`.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: &DeviceCacheView<'_>,
    prepared: &wgpu::Buffer,
) -> Result<Partials> {
    let tokens = view.raw_tokens;
    let splits = if tokens == 0 { 0 } else { splits(plan, tokens.div_ceil(LANES)) };
    let partials = Partials::new(rec, plan, splits, plan.head_dim_v + 2)?;
    if splits == 0 {
        return Ok(partials);
    }
    let blocks = blocks(plan);
    let pairs = plan.head_dim_v / 2;
    let [by_blocks, by_splits, by_tokens, by_pairs] =
        [blocks, splits, plan.tokens, pairs].map(Magic::of);
    let params = RawParams {
        kv_rows: plan.kv_rows as u32,
        per_row: plan.per_row as u32,
        tokens: plan.tokens as u32,
        head_dim_v: plan.head_dim_v as u32,
        total: tokens as u32,
        key_dtype: view.key_dtype.code(),
        value_dtype: view.value_dtype.code(),
        causal: u32::from(plan.causal.is_some()),
        first: plan.causal.unwrap_or(0),
        blocks: blocks as u32,
        splits: splits as u32,
        groups: (LANES / pairs).max(1) as u32,
        blocks_multiplier: by_blocks.multiplier,
        blocks_shift1: by_blocks.shift1,
        blocks_shift2: by_blocks.shift2,
        splits_multiplier: by_splits.multiplier,
        splits_shift1: by_splits.shift1,
        splits_shift2: by_splits.shift2,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        pairs_multiplier: by_pairs.multiplier,
        pairs_shift1: by_pairs.shift1,
        pairs_shift2: by_pairs.shift2,
    };
    rec.dispatch(
        &KERNEL,
        &variant(plan.head_dim_k),
        &params,
        &[
            Slice::all(prepared),
            view.raw_offsets,
            view.raw_keys,
            view.raw_values,
            positions(view.raw_positions, view.raw_offsets),
            Slice::all(&partials.buffer),
        ],
        Groups((plan.kv_rows * blocks * splits) as u64),
    )?;
    Ok(partials)
}
