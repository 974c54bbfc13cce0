//! Partial states over packed pages of a pool. Twin: `src/attention/cpu/paged_packed.rs`.

use super::block::{BLOCK, Partials, page_params};
use super::paged::{DevicePagedView, LANES, Units};
use super::tables::{SLABS, bound, variant};
use super::{plain, plain_kernel, rope_constants, rope_constants_of_all};
use crate::attention::params::{PackedPageParams, PagedPackedParams};
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::layout::PIECE;
use crate::layout::pool::PageClass;
use crate::nsnquant::gpu::DeviceCodebook;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/paged_packed",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/heads_4.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_page.wgsl"),
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
        include_str!("../../../wgsl/common/heads_4.wgsl"),
        include_str!("../../../wgsl/common/softmax.wgsl"),
        include_str!("../../../wgsl/common/attend.wgsl"),
        include_str!("../../../wgsl/common/attend_page.wgsl"),
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

/// Kernels for plain books, by the queries that they answer together.
macro_rules! plain {
    ($name:literal, $heads:literal, $round:literal) => {
        Kernel {
            name: $name,
            source: concat!(
                include_str!("../../../wgsl/common/element.wgsl"),
                include_str!("../../../wgsl/common/page.wgsl"),
                include_str!("../../../wgsl/common/grid.wgsl"),
                include_str!("../../../wgsl/common/divide.wgsl"),
                include_str!($heads),
                include_str!("../../../wgsl/common/softmax.wgsl"),
                include_str!("../../../wgsl/common/attend.wgsl"),
                include_str!("../../../wgsl/common/attend_page.wgsl"),
                include_str!("../../../wgsl/common/plain.wgsl"),
                include_str!("../../../wgsl/common/attend_pages.wgsl"),
                include_str!($round),
                include_str!("../../../wgsl/common/attend_paged.wgsl"),
                include_str!("../../../wgsl/attention/paged_packed_plain.wgsl"),
            ),
            ..KERNEL
        }
    };
}

static PLAIN_ONE: Kernel = plain!(
    "attention/paged_packed_plain+1",
    "../../../wgsl/common/heads_1.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static PLAIN_TWO: Kernel = plain!(
    "attention/paged_packed_plain+2",
    "../../../wgsl/common/heads_2.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static PLAIN_FOUR: Kernel = plain!(
    "attention/paged_packed_plain",
    "../../../wgsl/common/heads_4.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static BYTES_ONE: Kernel = plain!(
    "attention/paged_packed_plain+bytes+1",
    "../../../wgsl/common/heads_1.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);
static BYTES_TWO: Kernel = plain!(
    "attention/paged_packed_plain+bytes+2",
    "../../../wgsl/common/heads_2.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);
static BYTES_FOUR: Kernel = plain!(
    "attention/paged_packed_plain+bytes",
    "../../../wgsl/common/heads_4.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);

/// The kernels for plain books with the queries that they answer together.
pub(super) static PLAIN: [(usize, &Kernel); 3] =
    [(1, &PLAIN_ONE), (2, &PLAIN_TWO), (BLOCK, &PLAIN_FOUR)];
/// Those that multiply integers.
pub(super) static BYTES: [(usize, &Kernel); 3] =
    [(1, &BYTES_ONE), (2, &BYTES_TWO), (BLOCK, &BYTES_FOUR)];

/// Variants of a kernel for plain books.
pub(super) fn plain_variants(heads: usize, bytes: bool) -> Vec<Variant> {
    let few = plain::shapes(heads, bytes).into_iter().map(|shape| shape.variant(&[("SLABS", 1)]));
    let many = plain::shapes(heads, bytes).into_iter().step_by(3);
    few.chain(many.map(|shape| shape.variant(&[("SLABS", SLABS as u32)]))).collect()
}

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
    let turned = view.keys.filter(|keys| keys.codec().rope().is_some());
    let layouts = [keys, values];
    let halves = turned.is_none() && layouts.iter().all(|layout| book.halves(layout));
    let bytes = layouts.map(|layout| book.bytes(layout));
    let shape = plain::Shape::new(rec.context(), plan, layouts, halves, bytes);
    let packed = PackedPageParams {
        key_words: words,
        value_words: words,
        position_words: words,
        values_at: view.layout.values_offset(class) as u32,
        positions_at: view.layout.positions_offset(class) as u32,
        key_book: book.first_four(keys),
        value_book: book.first_four(values),
        ..page_params(keys, values, units.prepared)
    };
    let params = PagedPackedParams {
        attend: partials.params(plan, shape.map_or([LANES, PIECE, BLOCK], |shape| shape.split())),
        packed: shape.map_or(packed, |shape| shape.params(packed)),
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
    let groups = |heads| Groups(u64::from(units.params.units) * partials.blocks(heads) as u64);
    if let Some(shape) = shape {
        let kernel = plain_kernel(if shape.bytes { &BYTES } else { &PLAIN }, shape.heads);
        let variant = shape.variant(&[("SLABS", bound(units.count))]);
        return rec.dispatch(kernel, &variant, &params, &slices, groups(shape.heads));
    }
    let groups = groups(BLOCK);
    let mut variant = variant(plan.head_dim_k, units.count);
    let Some(keys) = turned else {
        return rec.dispatch(&KERNEL, &variant, &params, &slices, groups);
    };
    slices.push(keys.rope());
    variant.constants.retain(|(name, _)| *name != "HEAD_DIM");
    variant.constants.extend(rope_constants(keys.codec().hadamard()));
    rec.dispatch(&ROPE_KERNEL, &variant, &params, &slices, groups)
}

/// Variants of the kernel for keys that have a rotary embedding.
pub(super) fn rope_variants() -> Vec<Variant> {
    let of = |constants: Vec<(&'static str, u32)>| {
        [1, SLABS].map(|slabs| {
            let mut variant = variant(8, slabs);
            variant.constants.retain(|(name, _)| *name != "HEAD_DIM");
            variant.constants.extend(constants.clone());
            variant
        })
    };
    rope_constants_of_all().flat_map(of).collect()
}
