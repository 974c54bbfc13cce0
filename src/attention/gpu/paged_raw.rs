//! Partial states over raw and sink pages. Twin: `src/attention/cpu/paged_raw.rs`.

use super::block::{BLOCK, Partials};
use super::paged::{DevicePagedView, LANES, Units};
use super::tables::{Copies, variant};
use crate::attention::params::{CollectParams, PagedParams, PagedRawParams};
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::layout::PIECE;
use crate::layout::pool::{PageClass, PoolLayout};

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/paged_raw",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/heads_4.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_raw.wgsl"),
        include_str!("../../../wgsl/common/attend_paged.wgsl"),
        include_str!("../../../wgsl/attention/paged_raw.wgsl"),
    ),
    bindings: &[
        Binding::Read("prepared"),
        Binding::Read("lists"),
        Binding::Read("counts"),
        Binding::Read("slab_0"),
        Binding::Read("slab_1"),
        Binding::Read("slab_2"),
        Binding::Read("slab_3"),
        Binding::Write("partials"),
    ],
    params: PagedRawParams::LAYOUT,
};

/// Copies pages of either kind side by side.
pub(super) static COLLECT_KERNEL: Kernel = Kernel {
    name: "attention/paged_raw_collect",
    source: include_str!("../../../wgsl/attention/paged_raw_collect.wgsl"),
    bindings: &[
        Binding::Read("lists"),
        Binding::Read("slab_0"),
        Binding::Read("slab_1"),
        Binding::Read("slab_2"),
        Binding::Read("slab_3"),
        Binding::Write("collected"),
    ],
    params: CollectParams::LAYOUT,
};

/// Records the copying of pages of a class out of the slabs that are bound.
pub(super) fn collect(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    class: PageClass,
    lists: Slice<'_>,
    copies: &Copies,
    (slabs, bound): ([Slice<'_>; 4], PagedParams),
    collected: &wgpu::Buffer,
) -> Result<()> {
    let params = CollectParams {
        first: copies.first,
        count: copies.count,
        page_fours: (layout.words(class) / 4) as u32,
        shift: bound.shift,
        mask: bound.mask,
        pages: bound.pages,
        slab_0: bound.slab_0,
        slab_1: bound.slab_1,
        slab_2: bound.slab_2,
        slab_3: bound.slab_3,
    };
    let [a, b, c, d] = slabs;
    let slices = [lists, a, b, c, d, Slice::all(collected)];
    let groups = Groups(u64::from(copies.count));
    rec.dispatch(&COLLECT_KERNEL, &Variant::default(), &params, &slices, groups)
}

/// Records the partial states of units of raw or sink pages.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: &DevicePagedView<'_>,
    class: PageClass,
    units: &Units<'_>,
    partials: &Partials<'_>,
) -> Result<()> {
    let (layout, tables) = (view.layout, view.tables);
    let params = PagedRawParams {
        attend: partials.params(plan, [LANES, PIECE, BLOCK]),
        paged: units.params,
        dtype: view.raw.code(),
        rows: layout.rows(class) as u32,
        page_fours: (layout.words(class) / 4) as u32,
        values_at: (layout.values_offset(class) / 4) as u32,
        positions_at: (layout.positions_offset(class) / 4) as u32,
        counts_at: tables.counts_at(class),
    };
    let [a, b, c, d] = units.slabs;
    rec.dispatch(
        &KERNEL,
        &variant(plan.head_dim_k, units.count),
        &params,
        &[
            Slice::all(&units.prepared.buffer),
            tables.lists(),
            tables.counts(),
            a,
            b,
            c,
            d,
            Slice::all(partials.buffer),
        ],
        Groups(u64::from(units.params.units) * partials.blocks(BLOCK) as u64),
    )
}
