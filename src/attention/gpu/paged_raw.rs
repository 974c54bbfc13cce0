//! Partial states over raw and sink pages. Twin: `src/attention/cpu/paged_raw.rs`.

use super::block::Partials;
use super::paged::{DevicePagedView, LANES, Units};
use super::tables::variant;
use crate::attention::params::PagedRawParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice};
use crate::layout::pool::PageClass;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/paged_raw",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
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
        attend: partials.params(plan, LANES),
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
        &variant(plan.head_dim_k, units.count, units.spills),
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
        Groups(u64::from(units.params.units) * partials.blocks() as u64),
    )
}
