//! Outputs from partial states. Twin: `src/attention/cpu/merge.rs`.

use core::ops::Range;

use super::block::{PARTS, Partials};
use super::{DeviceAttended, hadamard_variant, hadamard_variants};
use crate::attention::params::MergeParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::layout::{MeanDomain, PageLayout};
use crate::nsnquant::Hadamard;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/merge",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/hadamard_pair.wgsl"),
        include_str!("../../../wgsl/attention/merge.wgsl"),
    ),
    bindings: &[
        Binding::Read("lists"),
        Binding::Read("partials_0"),
        Binding::Read("partials_1"),
        Binding::Read("partials_2"),
        Binding::Read("partials_3"),
        Binding::Read("partials_4"),
        Binding::Write("out"),
        Binding::Write("lse"),
    ],
    params: MergeParams::LAYOUT,
};

/// Invocations of a workgroup: several share a channel, since there are few workgroups.
const LANES: u32 = 256;

/// The variants are for slots that are listed or not, and for so many parts at most.
const KINDS: [(bool, usize); 5] = [(false, 1), (false, 2), (true, 1), (true, 3), (true, PARTS)];

pub(super) fn variants() -> Vec<Variant> {
    let all = || hadamard_variants(|_| LANES).into_iter();
    let of_kind = |kind| all().map(move |own| with_kind(own, kind));
    KINDS.into_iter().flat_map(of_kind).collect()
}

fn with_kind(mut variant: Variant, (listed, parts): (bool, usize)) -> Variant {
    let own = [("MERGE_LISTED", u32::from(listed)), ("MERGE_PARTS", parts as u32)];
    variant.constants.extend(own);
    variant
}

/// The slots of rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slots<'a> {
    /// So many raw slots and then so many packed ones in every row; the packed ones lie in the last
    /// part, the raw ones in the first.
    Same { raw: usize, packed: usize },
    /// Four words a row from a place on: begin, first and end of the packed ones, end; and from
    /// another on, where each slot lies.
    Listed { lists: Slice<'a>, at: u32, places_at: u32 },
}

/// Records the merging of the partial states of some rows into the outputs; `packed` is how packed
/// values lie, if there are any.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    rows: Range<usize>,
    slots: Slots<'_>,
    parts: &[Partials<'_>],
    packed: Option<&PageLayout>,
    attended: &DeviceAttended,
) -> Result<()> {
    let Some(partials) = parts.first() else { return Ok(()) };
    let by_span = Magic::of(partials.span());
    let base = |part: usize| parts.get(part).map_or(0, |partials| partials.slot_base);
    let mut params = MergeParams {
        rows: rows.len() as u32,
        rows_first: rows.start as u32,
        per_row: plan.per_row as u32,
        queries_first: partials.queries.0 as u32,
        span: partials.span() as u32,
        span_multiplier: by_span.multiplier,
        span_shift1: by_span.shift1,
        span_shift2: by_span.shift2,
        stride: (partials.stride / 2) as u32,
        base_0: base(0),
        base_1: base(1),
        base_2: base(2),
        base_3: base(3),
        base_4: base(4),
        hadamard_scale: Hadamard::new("head_dim_v", plan.head_dim_v)?.scale(),
        plain: u32::from(packed.is_some_and(|values| values.scheme().mean == MeanDomain::Plain)),
        ..MergeParams::default()
    };
    let lists = match slots {
        Slots::Same { raw, packed } => {
            params.slots = (raw + packed) as u32;
            params.packed_first = raw as u32;
            Slice::all(partials.buffer)
        }
        Slots::Listed { lists, at, places_at } => {
            params.slots_at = at;
            params.places_at = places_at;
            lists
        }
    };
    // What stands for parts that there are not.
    let none = Slice { size: 8, ..Slice::all(partials.buffer) };
    let part = |part: usize| parts.get(part).map_or(none, |partials| Slice::all(partials.buffer));
    let [out, lse] = [&attended.out, &attended.lse].map(Slice::all);
    let signs = packed.and_then(|values| values.scheme().signs);
    let listed = matches!(slots, Slots::Listed { .. });
    let fits = |kind: &&(bool, usize)| kind.0 == listed && kind.1 >= parts.len();
    let kind = KINDS.iter().find(fits).copied().unwrap_or((listed, PARTS));
    rec.dispatch(
        &KERNEL,
        &with_kind(hadamard_variant(LANES, plan.head_dim_v, signs)?, kind),
        &params,
        &[lists, part(0), part(1), part(2), part(3), part(4), out, lse],
        Groups((rows.len() * partials.span()) as u64),
    )
}
