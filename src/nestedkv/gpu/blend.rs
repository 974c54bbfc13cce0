//! Steps 4, 6 and 7: stretched scores, their blend and their deviation.

use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::params::BlendParams;
use crate::primitives::gpu::size;

/// One token a lane.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/blend",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/nestedkv/blend.wgsl"),
    ),
    bindings: &[
        Binding::Read("spreads"),
        Binding::Write("scales"),
        Binding::Write("blends"),
        Binding::Write("deviations"),
    ],
    params: BlendParams::LAYOUT,
};

/// Records the blend and the deviation, `[rows, tokens]` f32 each, and stretches `scales`
/// `[3, rows, tokens]` in place by the spreads of [`super::spread`].
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
) -> Result<[wgpu::Buffer; 2]> {
    let count = u64::from(size("scores", rows.saturating_mul(tokens))?);
    let blends = rec.context().create("blend", count * 4)?;
    let deviations = rec.context().create("deviations", count * 4)?;
    let by_tokens = Magic::of(tokens);
    let params = BlendParams {
        rows: size("rows", rows)?,
        tokens: size("tokens", tokens)?,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        beta: cfg.beta,
        prior_s: cfg.prior[0],
        prior_e: cfg.prior[1],
        prior_c: cfg.prior[2],
    };
    let slices = [spreads, scales, Slice::all(&blends), Slice::all(&deviations)];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(count.div_ceil(256)))?;
    Ok([blends, deviations])
}
