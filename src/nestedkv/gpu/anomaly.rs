//! Steps 2 and 3: raw scores of the three scales.

use crate::error::{Error, Result};
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AnomalyParams;

/// 16 tokens of a row a workgroup.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/anomaly",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/unit_key.wgsl"),
        include_str!("../../../wgsl/nestedkv/anomaly.wgsl"),
    ),
    bindings: &[
        Binding::Read("keys"),
        Binding::Read("factors"),
        Binding::Read("means"),
        Binding::Read("sums"),
        Binding::Read("piece_sums"),
        Binding::Write("scales"),
    ],
    params: AnomalyParams::LAYOUT,
};

/// What the three scales compare keys with.
#[derive(Clone, Copy, Debug)]
pub struct Anchors<'a> {
    /// Factors of the rows, of [`super::norm`].
    pub factors: Slice<'a>,
    /// Means of the rows, of [`super::mean`].
    pub means: Slice<'a>,
    /// Sums over blocks, of [`super::anchor`].
    pub blocks: Slice<'a>,
    /// Tokens of a block.
    pub block: usize,
    /// Sums over pieces of [`crate::nestedkv::plan::PIECE_TOKENS`] tokens, of [`super::anchor`],
    /// where long windows start from them.
    pub pieces: Option<Slice<'a>>,
    /// Tokens of the trailing window.
    pub window: usize,
}

/// Records the raw scores `[3, rows, tokens]` f32: stable, episodic, current.
///
/// # Errors
/// [`Error::Empty`] for a block of no tokens; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    anchors: &Anchors<'_>,
) -> Result<wgpu::Buffer> {
    let (rows, tokens) = (keys.rows(), keys.tokens());
    if anchors.block == 0 {
        return Err(Error::Empty { argument: "block" });
    }
    let scales = rec.context().create("scales", 3 * (rows * tokens) as u64 * 4)?;
    let tiles = tokens.div_ceil(16);
    let by_tiles = Magic::of(tiles);
    let by_block = Magic::of(anchors.block.min(tokens));
    let pieces = tokens.div_ceil(crate::nestedkv::plan::PIECE_TOKENS);
    let params = AnomalyParams {
        rows: rows as u32,
        tokens: tokens as u32,
        dim: keys.head_dim() as u32,
        dtype: keys.dtype().code(),
        tiles: tiles as u32,
        tiles_multiplier: by_tiles.multiplier,
        tiles_shift1: by_tiles.shift1,
        tiles_shift2: by_tiles.shift2,
        block: anchors.block.min(tokens) as u32,
        blocks: tokens.div_ceil(anchors.block) as u32,
        block_multiplier: by_block.multiplier,
        block_shift1: by_block.shift1,
        block_shift2: by_block.shift2,
        window: anchors.window.min(tokens) as u32,
        pieces: if anchors.pieces.is_some() { pieces as u32 } else { 0 },
    };
    let slices = [
        keys.slice(),
        anchors.factors,
        anchors.means,
        anchors.blocks,
        anchors.pieces.unwrap_or(anchors.blocks),
        Slice::all(&scales),
    ];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups((rows * tiles) as u64))?;
    Ok(scales)
}
