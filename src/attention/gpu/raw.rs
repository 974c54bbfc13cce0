//! Partial states over raw tokens. Twin: `src/attention/cpu/raw.rs`.

use super::block::{BLOCK, Partials};
use super::rotate::Prepared;
use super::view::DeviceCacheView;
use super::{head_dim_variant, head_dims, positions};
use crate::attention::params::RawParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::layout::PIECE;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/raw",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/heads_4.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_raw.wgsl"),
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
pub(super) const LANES: usize = 128;

pub(super) fn variants() -> Vec<Variant> {
    head_dims().map(head_dim_variant).collect()
}

/// Records the partial states of the first `splits` of `slots` slots of each row.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: &DeviceCacheView<'_>,
    prepared: &Prepared,
    partials: &Partials<'_>,
    [splits, slots]: [usize; 2],
) -> Result<()> {
    let by_splits = Magic::of(splits);
    let params = RawParams {
        attend: partials.params(plan, [LANES, PIECE, BLOCK]),
        kv_rows: plan.kv_rows as u32,
        total: view.raw_tokens as u32,
        key_dtype: view.key_dtype.code(),
        value_dtype: view.value_dtype.code(),
        splits: splits as u32,
        slots: slots as u32,
        splits_multiplier: by_splits.multiplier,
        splits_shift1: by_splits.shift1,
        splits_shift2: by_splits.shift2,
    };
    rec.dispatch(
        &KERNEL,
        &head_dim_variant(plan.head_dim_k),
        &params,
        &[
            Slice::all(&prepared.buffer),
            view.raw_offsets,
            view.raw_keys,
            view.raw_values,
            positions(view.raw_positions, view.raw_offsets),
            Slice::all(partials.buffer),
        ],
        Groups((plan.kv_rows * partials.blocks(BLOCK) * splits) as u64),
    )
}
