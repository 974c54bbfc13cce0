//! Outputs from partial states. Twin: `src/attention/cpu/merge.rs`.

use core::ops::Range;

use super::block::Partials;
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
        include_str!("../../../wgsl/attention/merge.wgsl"),
    ),
    bindings: &[
        Binding::Read("lists"),
        Binding::Read("partials"),
        Binding::Write("out"),
        Binding::Write("lse"),
    ],
    params: MergeParams::LAYOUT,
};

/// Invocations of a workgroup: several share a channel, since there are few workgroups.
const LANES: u32 = 256;

pub(super) fn variants() -> Vec<Variant> {
    hadamard_variants(LANES)
}

/// The slots of rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slots<'a> {
    /// So many raw slots and then so many packed ones in every row.
    Same { raw: usize, packed: usize },
    /// Four words a row from a place on: begin, first and end of the packed ones, end.
    Listed { lists: Slice<'a>, at: u32 },
}

/// Records the merging of the partial states of some rows into the outputs; `packed` is how packed
/// values lie, if there are any.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    rows: Range<usize>,
    slots: Slots<'_>,
    partials: &Partials<'_>,
    packed: Option<&PageLayout>,
    attended: &DeviceAttended,
) -> Result<()> {
    let by_span = Magic::of(partials.span());
    let mut params = MergeParams {
        rows: rows.len() as u32,
        rows_first: rows.start as u32,
        per_row: plan.per_row as u32,
        queries_first: partials.queries.0 as u32,
        span: partials.span() as u32,
        span_multiplier: by_span.multiplier,
        span_shift1: by_span.shift1,
        span_shift2: by_span.shift2,
        stride: partials.stride as u32,
        slot_base: partials.slot_base,
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
        Slots::Listed { lists, at } => {
            params.listed = 1;
            params.slots_at = at;
            lists
        }
    };
    rec.dispatch(
        &KERNEL,
        &hadamard_variant(LANES, plan.head_dim_v, packed.and_then(|values| values.scheme().signs))?,
        &params,
        &[lists, Slice::all(partials.buffer), Slice::all(&attended.out), Slice::all(&attended.lse)],
        Groups((rows.len() * partials.span()) as u64),
    )
}
