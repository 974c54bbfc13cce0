//! Steps 1 and 2: factors that bring keys to norm 1, and sums of normalised keys over runs of tokens.

use crate::error::{Error, Result};
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AnchorParams;
use crate::nestedkv::plan::{Cut, SHORT_SUM};
use crate::shape::{Dtype, MAX_HEAD_DIM};

/// One run a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/anchor",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/unit_key.wgsl"),
        include_str!("../../../wgsl/common/run.wgsl"),
        include_str!("../../../wgsl/nestedkv/anchor.wgsl"),
    ),
    bindings: &[Binding::Read("keys"), Binding::Write("factors"), Binding::Write("sums")],
    params: AnchorParams::LAYOUT,
};

/// Lanes that share a token, as a power of two: 8 channels each, and 8 lanes at least.
pub(super) fn lane_bits(head_dim: usize) -> u32 {
    (head_dim / 8).next_power_of_two().max(8).ilog2()
}

/// The variant for keys of a type and head dimension.
fn variant(dtype: Dtype, head_dim: usize) -> Variant {
    let constants = vec![("DTYPE", dtype.code()), ("LANE_BITS", lane_bits(head_dim))];
    Variant { constants, overrides: Vec::new() }
}

/// Every type with every number of lanes.
pub(super) fn shapes() -> Vec<(Dtype, usize)> {
    let dims = || (6..=MAX_HEAD_DIM.ilog2()).map(|log| 1 << log);
    [Dtype::F32, Dtype::F16, Dtype::Bf16]
        .into_iter()
        .flat_map(|dtype| dims().map(move |dim| (dtype, dim)))
        .collect()
}

/// Every variant that occurs.
pub(crate) fn variants() -> Vec<Variant> {
    shapes().into_iter().map(|(dtype, dim)| variant(dtype, dim)).collect()
}

/// Factors and sums of keys.
#[derive(Clone, Debug)]
pub struct Anchored {
    /// `[rows, tokens]` f32: `2^24 / max(|k|, 1e-12)`, negative where the row holds NaN or Inf; the
    /// last bit is a mark for the pass that follows.
    pub factors: wgpu::Buffer,
    /// Sums over the runs of a [`Cut`], `[rows, runs, head_dim]` i32 in multiples of `1 / GRID`.
    pub sums: wgpu::Buffer,
}

/// Records the factors of keys (step 1) and their sums over runs, in blocks of `block` tokens.
///
/// # Errors
/// [`Error::OutOfRange`] for a block of none or more than [`SHORT_SUM`] tokens; as
/// [`Recorder::dispatch`].
pub fn record(rec: &mut Recorder<'_>, keys: &DeviceTensor<'_>, block: usize) -> Result<Anchored> {
    if !(1..=SHORT_SUM).contains(&block) {
        let (got, max) = (block as u64, SHORT_SUM as u64);
        return Err(Error::OutOfRange { argument: "block", got, min: 1, max });
    }
    let (rows, tokens, dim) = (keys.rows(), keys.tokens(), keys.head_dim());
    let cut = Cut { tokens, block: block.min(tokens) };
    let lines = (rows * cut.runs()) as u64;
    let factors = rec.context().create("factors", (rows * tokens) as u64 * 4)?;
    let sums = rec.context().create("run sums", lines * dim as u64 * 4)?;
    let by_pieces = Magic::of(cut.pieces());
    let by_runs = Magic::of(cut.runs());
    let params = AnchorParams {
        rows: rows as u32,
        tokens: tokens as u32,
        dim: dim as u32,
        block: cut.block as u32,
        pieces: cut.pieces() as u32,
        pieces_multiplier: by_pieces.multiplier,
        pieces_shift1: by_pieces.shift1,
        pieces_shift2: by_pieces.shift2,
        runs: cut.runs() as u32,
        runs_multiplier: by_runs.multiplier,
        runs_shift1: by_runs.shift1,
        runs_shift2: by_runs.shift2,
    };
    let slices = [keys.slice(), Slice::all(&factors), Slice::all(&sums)];
    rec.dispatch(&KERNEL, &variant(keys.dtype(), dim), &params, &slices, Groups(lines))?;
    Ok(Anchored { factors, sums })
}
