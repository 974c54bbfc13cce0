//! Steps 7 and 8: the score.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::params::GateParams;
use crate::nestedkv::plan::FLAT_SPAN;
use crate::primitives::gpu::size;

/// One token a lane.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/gate",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/nestedkv/gate.wgsl"),
    ),
    bindings: &[
        Binding::Read("factors"),
        Binding::Read("surprises"),
        Binding::Read("scales"),
        Binding::Read("blends"),
        Binding::Read("deviations"),
        Binding::Write("scores"),
    ],
    params: GateParams::LAYOUT,
};

/// What the gate reads, of the stages before.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Factors of the key rows; the sign says NaN or Inf.
    pub factors: Slice<'a>,
    /// Stretched scores `[3, rows, tokens]`.
    pub scales: Slice<'a>,
    /// Blend `[rows, tokens]`.
    pub blends: Slice<'a>,
    /// Deviations `[rows, tokens]`.
    pub deviations: Slice<'a>,
    /// What [`super::blend`] found of the deviations.
    pub surprises: Slice<'a>,
}

/// Records the scores `[rows, tokens]` f32: steps 7 and 8 of [`crate::nestedkv`] (arXiv 2605.26678,
/// appendix A).
///
/// # Errors
/// [`crate::Error::OutOfRange`] for sizes beyond 32 bits; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    parts: &Parts<'_>,
    rows: usize,
    tokens: usize,
    cfg: &ScoreConfig,
) -> Result<wgpu::Buffer> {
    let count = u64::from(size("scores", rows.saturating_mul(tokens))?);
    let scores = rec.context().create("scores", count * 4)?;
    let by_tokens = Magic::of(tokens);
    let params = GateParams {
        rows: size("rows", rows)?,
        tokens: size("tokens", tokens)?,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        tau: cfg.tau,
        kappa: cfg.kappa,
        rectify: u32::from(cfg.rectify),
        flat: FLAT_SPAN,
    };
    let slices = [
        parts.factors,
        parts.surprises,
        parts.scales,
        parts.blends,
        parts.deviations,
        Slice::all(&scores),
    ];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(count.div_ceil(256)))?;
    Ok(scores)
}
