//! Outputs from partial states. Twin: `src/attention/cpu/merge.rs`.

use super::{DeviceAttended, Partials, hadamard_variant, head_dims};
use crate::attention::params::MergeParams;
use crate::attention::plan::Plan;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nsnquant::Hadamard;

pub(super) static KERNEL: Kernel = Kernel {
    name: "attention/merge",
    source: concat!(
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/attention/merge.wgsl"),
    ),
    bindings: &[
        Binding::Read("raw"),
        Binding::Read("packed"),
        Binding::Write("out"),
        Binding::Write("lse"),
    ],
    params: MergeParams::LAYOUT,
};

pub(super) fn variants() -> Vec<Variant> {
    head_dims().filter_map(|dim| hadamard_variant(dim).ok()).collect()
}

/// Records the merging of all partial states into the outputs.
pub(super) fn record(
    rec: &mut Recorder<'_>,
    plan: &Plan,
    raw: &Partials,
    packed: &Partials,
    attended: &DeviceAttended,
) -> Result<()> {
    let params = MergeParams {
        queries: plan.queries() as u32,
        raw_splits: raw.splits as u32,
        packed_splits: packed.splits as u32,
        hadamard_scale: Hadamard::new("head_dim_v", plan.head_dim_v)?.scale(),
    };
    rec.dispatch(
        &KERNEL,
        &hadamard_variant(plan.head_dim_v)?,
        &params,
        &[
            Slice::all(&raw.buffer),
            Slice::all(&packed.buffer),
            Slice::all(&attended.out),
            Slice::all(&attended.lse),
        ],
        Groups(plan.queries() as u64),
    )
}
