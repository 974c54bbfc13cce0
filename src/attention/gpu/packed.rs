//! Partial states over packed pages. Twin: `src/attention/cpu/packed.rs`.

use super::view::DevicePackedView;
use super::{Partials, blocks, head_dims, positions, splits};
use crate::attention::params::PackedParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/packed",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/attention/packed.wgsl"),
    ),
    bindings: &[
        Binding::Read("prepared"),
        Binding::Read("offsets"),
        Binding::Read("key_pages"),
        Binding::Read("value_pages"),
        Binding::Read("key_book"),
        Binding::Read("value_book"),
        Binding::Read("positions"),
        Binding::Write("partials"),
    ],
    params: PackedParams::LAYOUT,
};

/// Invocations of a workgroup and tokens of a tile.
const LANES: usize = 64;

pub(super) fn variants() -> Vec<Variant> {
    head_dims().map(variant).collect()
}

fn variant(head_dim: usize) -> Variant {
    Variant { constants: vec![("HEAD_DIM", head_dim as u32)], overrides: Vec::new() }
}

/// Records the partial states `[queries, splits, 2 * head_dim_v + 2]`.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: Option<&DevicePackedView<'_>>,
    prepared: &wgpu::Buffer,
) -> Result<Partials> {
    let values = 2 * plan.head_dim_v + 2;
    let Some(view) = view.filter(|view| view.pages > 0) else {
        return Partials::new(rec, plan, 0, values);
    };
    let splits = splits(plan, view.pages);
    let partials = Partials::new(rec, plan, splits, values)?;
    let blocks = blocks(plan);
    let (keys, values) = (view.keys.layout(), view.values.layout());
    let [by_blocks, by_splits, by_tokens, by_pieces] =
        [blocks, splits, plan.tokens, values.pieces()].map(Magic::of);
    let params = PackedParams {
        kv_rows: plan.kv_rows as u32,
        per_row: plan.per_row as u32,
        tokens: plan.tokens as u32,
        head_dim_v: plan.head_dim_v as u32,
        total: view.pages as u32,
        chunk: keys.chunk() as u32,
        causal: u32::from(plan.causal.is_some()),
        first: plan.causal.unwrap_or(0),
        blocks: blocks as u32,
        splits: splits as u32,
        groups: (LANES / values.pieces()) as u32,
        pieces_v: values.pieces() as u32,
        norm_k: (plan.head_dim_k as f32).sqrt(),
        norm_v: (plan.head_dim_v as f32).sqrt(),
        key_bits: keys.bits().get() as u32,
        value_bits: values.bits().get() as u32,
        key_words: keys.words() as u32,
        key_sign: keys.sign_offset() as u32,
        key_s1: keys.s1_offset() as u32,
        key_s2: keys.s2_offset() as u32,
        key_o: keys.o_offset() as u32,
        value_words: values.words() as u32,
        value_sign: values.sign_offset() as u32,
        value_s1: values.s1_offset() as u32,
        value_s2: values.s2_offset() as u32,
        value_o: values.o_offset() as u32,
        blocks_multiplier: by_blocks.multiplier,
        blocks_shift1: by_blocks.shift1,
        blocks_shift2: by_blocks.shift2,
        splits_multiplier: by_splits.multiplier,
        splits_shift1: by_splits.shift1,
        splits_shift2: by_splits.shift2,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        pieces_multiplier: by_pieces.multiplier,
        pieces_shift1: by_pieces.shift1,
        pieces_shift2: by_pieces.shift2,
    };
    rec.dispatch(
        &KERNEL,
        &variant(plan.head_dim_k),
        &params,
        &[
            Slice::all(prepared),
            view.page_offsets,
            view.key_pages,
            view.value_pages,
            Slice::all(view.keys.book()),
            Slice::all(view.values.book()),
            positions(view.page_positions, view.page_offsets),
            Slice::all(&partials.buffer),
        ],
        Groups((plan.kv_rows * blocks * splits) as u64),
    )?;
    Ok(partials)
}
