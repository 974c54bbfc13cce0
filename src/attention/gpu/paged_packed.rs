//! Partial states over packed pages of a pool. Twin: `src/attention/cpu/paged_packed.rs`.

use super::block::{Partials, page_params};
use super::paged::{DevicePagedView, LANES, Units};
use super::tables::{SLABS, variant};
use super::{rope_constants, rope_constants_of_all};
use crate::attention::params::{PackedPageParams, PagedPackedParams};
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::layout::pool::PageClass;
use crate::nsnquant::gpu::DeviceCodebook;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/paged_packed",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_packed.wgsl"),
        include_str!("../../../wgsl/common/attend_still.wgsl"),
        include_str!("../../../wgsl/common/attend_paged.wgsl"),
        include_str!("../../../wgsl/attention/paged_packed.wgsl"),
    ),
    bindings: &[
        Binding::Read("prepared"),
        Binding::Read("lists"),
        Binding::Read("book"),
        Binding::Read("slab_0"),
        Binding::Read("slab_1"),
        Binding::Read("slab_2"),
        Binding::Read("slab_3"),
        Binding::Write("partials"),
    ],
    params: PagedPackedParams::LAYOUT,
};

/// The same for keys that have a rotary embedding.
pub(super) static ROPE_KERNEL: Kernel = Kernel {
    name: "attention/paged_packed+rope",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/rope.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_packed.wgsl"),
        include_str!("../../../wgsl/common/attend_rope.wgsl"),
        include_str!("../../../wgsl/common/attend_paged.wgsl"),
        include_str!("../../../wgsl/attention/paged_packed.wgsl"),
    ),
    bindings: &[
        Binding::Read("prepared"),
        Binding::Read("lists"),
        Binding::Read("book"),
        Binding::Read("slab_0"),
        Binding::Read("slab_1"),
        Binding::Read("slab_2"),
        Binding::Read("slab_3"),
        Binding::Write("partials"),
        Binding::Constant("rope"),
    ],
    params: PagedPackedParams::LAYOUT,
};

/// Records the partial states of units of packed pages; there are none where nothing is packed.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: &DevicePagedView<'_>,
    book: &DeviceCodebook,
    units: &Units<'_>,
    partials: &Partials<'_>,
) -> Result<()> {
    let Some([keys, values]) = view.layout.packed() else { return Ok(()) };
    let class = PageClass::Packed;
    let words = view.layout.words(class) as u32;
    let params = PagedPackedParams {
        attend: partials.params(plan, LANES),
        packed: PackedPageParams {
            key_words: words,
            value_words: words,
            position_words: words,
            values_at: view.layout.values_offset(class) as u32,
            positions_at: view.layout.positions_offset(class) as u32,
            key_book: book.first_four(keys),
            value_book: book.first_four(values),
            ..page_params(keys, values, units.prepared)
        },
        paged: units.params,
    };
    let [a, b, c, d] = units.slabs;
    let mut slices = vec![
        Slice::all(&units.prepared.buffer),
        view.tables.lists(),
        Slice::all(book.buffer()),
        a,
        b,
        c,
        d,
        Slice::all(partials.buffer),
    ];
    let groups = Groups(u64::from(units.params.units) * partials.blocks() as u64);
    let mut variant = variant(plan.head_dim_k, units.count, units.spills);
    let Some(keys) = view.keys.filter(|keys| keys.codec().rope().is_some()) else {
        return rec.dispatch(&KERNEL, &variant, &params, &slices, groups);
    };
    slices.push(keys.rope());
    variant.constants.retain(|(name, _)| *name != "HEAD_DIM");
    variant.constants.extend(rope_constants(keys.codec().hadamard()));
    rec.dispatch(&ROPE_KERNEL, &variant, &params, &slices, groups)
}

/// Variants of the kernel for keys that have a rotary embedding.
pub(super) fn rope_variants() -> Vec<Variant> {
    let kinds = [(1, false), (SLABS, false), (SLABS, true)];
    let of = |constants: Vec<(&'static str, u32)>| {
        kinds.map(|(slabs, spills)| {
            let mut variant = variant(8, slabs, spills);
            variant.constants.retain(|(name, _)| *name != "HEAD_DIM");
            variant.constants.extend(constants.clone());
            variant
        })
    };
    rope_constants_of_all().flat_map(of).collect()
}
