//! Steps 4, 6 and 7: stretched scores, their blend and their deviation.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::params::BlendParams;
use crate::primitives::gpu::size;

/// Tokens of a workgroup.
const SPAN: usize = 1024;

/// [`SPAN`] tokens of a row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/blend",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/nestedkv/blend.wgsl"),
    ),
    bindings: &[
        Binding::Read("spreads"),
        Binding::Write("scales"),
        Binding::Write("blends"),
        Binding::Write("deviations"),
        Binding::Write("surprises"),
    ],
    params: BlendParams::LAYOUT,
};

/// Blend and deviations of the scores of three scales.
#[derive(Clone, Debug)]
pub struct Blended {
    /// `[rows, tokens]` f32.
    pub blends: wgpu::Buffer,
    /// `[rows, tokens]` f32.
    pub deviations: wgpu::Buffer,
    /// `[rows, 4]` u32 of the deviations: highest key ([`crate::primitives::order::order_key`]),
    /// highest complement of a key, and the sum in multiples of 2^-22, the low 16 bits first.
    pub surprises: wgpu::Buffer,
}

/// Records the blend (step 6) and the deviation (step 7), and stretches `scales` `[3, rows, tokens]` in place by the
/// spreads of [`super::spread`].
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    scales: Slice<'_>,
    spreads: Slice<'_>,
    rows: usize,
    tokens: usize,
    cfg: &ScoreConfig,
) -> Result<Blended> {
    let count = u64::from(size("scores", rows.saturating_mul(tokens))?);
    let blends = rec.context().create("blend", count * 4)?;
    let deviations = rec.context().create("deviations", count * 4)?;
    // A new buffer holds zeros.
    let surprises = rec.context().create("surprises", rows as u64 * 16)?;
    let parts = tokens.div_ceil(SPAN).max(1);
    let by_parts = Magic::of(parts);
    let params = BlendParams {
        rows: size("rows", rows)?,
        tokens: size("tokens", tokens)?,
        parts: parts as u32,
        parts_multiplier: by_parts.multiplier,
        parts_shift1: by_parts.shift1,
        parts_shift2: by_parts.shift2,
        beta: cfg.beta,
        prior_s: cfg.prior[0],
        prior_e: cfg.prior[1],
        prior_c: cfg.prior[2],
    };
    let outputs = [&blends, &deviations, &surprises].map(Slice::all);
    let slices = [spreads, scales, outputs[0], outputs[1], outputs[2]];
    let groups = Groups((rows * parts) as u64);
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, groups)?;
    Ok(Blended { blends, deviations, surprises })
}
