//! Partial states over packed pages. Twin: `src/attention/cpu/packed.rs`.

use super::block::{BLOCK, Partials, page_params};
use super::plain;
use super::rotate::Prepared;
use super::view::DevicePackedView;
use super::{
    BYTES_GROUPS, GROUPS, ONE_BYTES_GROUPS, head_dim_variant, head_dims, plain_kernel, positions,
    rope_constants, rope_constants_of_all,
};
use crate::attention::params::PackedParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Context, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::layout::PIECE;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/packed",
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

/// The same for keys that have a rotary embedding.
pub(super) static ROPE_KERNEL: Kernel = Kernel {
    name: "attention/packed+rope",
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
        Binding::Constant("rope"),
    ],
    params: PackedParams::LAYOUT,
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
                include_str!("../../../wgsl/attention/packed_plain.wgsl"),
            ),
            ..KERNEL
        }
    };
}

static PLAIN_ONE: Kernel = plain!(
    "attention/packed_plain+1",
    "../../../wgsl/common/heads_1.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static PLAIN_TWO: Kernel = plain!(
    "attention/packed_plain+2",
    "../../../wgsl/common/heads_2.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static PLAIN_FOUR: Kernel = plain!(
    "attention/packed_plain",
    "../../../wgsl/common/heads_4.wgsl",
    "../../../wgsl/common/attend_plain.wgsl"
);
static BYTES_ONE: Kernel = plain!(
    "attention/packed_plain+bytes+1",
    "../../../wgsl/common/heads_1.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);
static BYTES_TWO: Kernel = plain!(
    "attention/packed_plain+bytes+2",
    "../../../wgsl/common/heads_2.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);
static BYTES_FOUR: Kernel = plain!(
    "attention/packed_plain+bytes",
    "../../../wgsl/common/heads_4.wgsl",
    "../../../wgsl/common/attend_bytes.wgsl"
);

/// The kernels for plain books with the queries that they answer together.
pub(super) static PLAIN: [(usize, &Kernel); 3] =
    [(1, &PLAIN_ONE), (2, &PLAIN_TWO), (BLOCK, &PLAIN_FOUR)];
/// Those that multiply integers.
pub(super) static BYTES: [(usize, &Kernel); 3] =
    [(1, &BYTES_ONE), (2, &BYTES_TWO), (BLOCK, &BYTES_FOUR)];

/// Invocations of a workgroup and tokens of a tile.
const LANES: usize = 64;

pub(super) fn variants() -> Vec<Variant> {
    head_dims().map(head_dim_variant).collect()
}

/// Variants of a kernel for plain books.
pub(super) fn plain_variants(heads: usize, bytes: bool) -> Vec<Variant> {
    plain::shapes(heads, bytes).iter().map(|shape| shape.variant(&[])).collect()
}

/// Variants of the kernel for keys that have a rotary embedding.
pub(super) fn rope_variants() -> Vec<Variant> {
    rope_constants_of_all().map(|constants| Variant { constants, overrides: Vec::new() }).collect()
}

/// The shape of the kernel for plain books, where these are such.
fn shape(context: &Context, plan: &Plan, view: &DevicePackedView<'_>) -> Option<plain::Shape> {
    let layouts = [view.keys.layout(), view.values.layout()];
    let books = [view.keys, view.values].map(|codec| codec.codec().book());
    let halves = books.iter().all(|book| book.halves());
    let turned = view.keys.codec().rope().is_some();
    let bytes = books.map(|book| book.bytes());
    plain::Shape::new(context, plan, layouts, halves && !turned, bytes)
}

/// Workgroups that fill a large device.
pub(super) fn workgroups(context: &Context, plan: &Plan, view: &DevicePackedView<'_>) -> usize {
    match shape(context, plan, view) {
        Some(shape) if shape.bytes && shape.heads == 1 => ONE_BYTES_GROUPS,
        Some(shape) if shape.bytes => BYTES_GROUPS,
        _ => GROUPS,
    }
}

/// Records the partial states of the last `splits` of `slots` slots of each row.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    view: &DevicePackedView<'_>,
    prepared: &Prepared,
    partials: &Partials<'_>,
    [splits, slots]: [usize; 2],
) -> Result<()> {
    let by_splits = Magic::of(splits);
    let layouts = [view.keys.layout(), view.values.layout()];
    let turned = view.keys.codec().rope().is_some();
    let shape = shape(rec.context(), plan, view);
    let packed = page_params(layouts[0], layouts[1], prepared);
    let params = PackedParams {
        attend: partials.params(plan, shape.map_or([LANES, PIECE, BLOCK], |shape| shape.split())),
        packed: shape.map_or(packed, |shape| shape.params(packed)),
        kv_rows: plan.kv_rows as u32,
        total: view.pages as u32,
        splits: splits as u32,
        slots: slots as u32,
        slots_first: (slots - splits) as u32,
        splits_multiplier: by_splits.multiplier,
        splits_shift1: by_splits.shift1,
        splits_shift2: by_splits.shift2,
    };
    let mut slices = vec![
        Slice::all(&prepared.buffer),
        view.page_offsets,
        view.key_pages,
        view.value_pages,
        view.keys.rows(),
        view.values.rows(),
        positions(view.page_positions, view.page_offsets),
        Slice::all(partials.buffer),
    ];
    let groups = |heads| Groups((plan.kv_rows * partials.blocks(heads) * splits) as u64);
    if let Some(shape) = shape {
        let kernel = plain_kernel(if shape.bytes { &BYTES } else { &PLAIN }, shape.heads);
        return rec.dispatch(kernel, &shape.variant(&[]), &params, &slices, groups(shape.heads));
    }
    let groups = groups(BLOCK);
    if turned {
        slices.push(view.keys.rope());
        let constants = rope_constants(view.keys.codec().hadamard());
        let variant = Variant { constants, overrides: Vec::new() };
        return rec.dispatch(&ROPE_KERNEL, &variant, &params, &slices, groups);
    }
    rec.dispatch(&KERNEL, &head_dim_variant(plan.head_dim_k), &params, &slices, groups)
}
