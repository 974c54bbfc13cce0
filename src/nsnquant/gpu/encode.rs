//! Packs chunks. Twin: `src/nsnquant/cpu/encode.rs`.

use super::device::{self, DeviceCodec, DeviceKeyScales};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::layout::MAX_CHUNK;
use crate::nsnquant::codec::Codec;
use crate::nsnquant::params::EncodeParams;
use crate::shape::Dtype;

/// Invocations of a workgroup, each with four pieces in hand.
const LANES: u32 = 64;

static KERNEL: Kernel = Kernel {
    name: "nsnquant/encode",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/turn.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/quantise.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/rope.wgsl"),
        include_str!("../../../wgsl/common/nearest.wgsl"),
        include_str!("../../../wgsl/common/key_scale.wgsl"),
        include_str!("../../../wgsl/common/coarse.wgsl"),
        include_str!("../../../wgsl/common/pieces.wgsl"),
        include_str!("../../../wgsl/common/encode.wgsl"),
        include_str!("../../../wgsl/nsnquant/encode.wgsl"),
    ),
    bindings: &[
        Binding::Read("data"),
        Binding::Read("starts"),
        Binding::Constant("book"),
        Binding::Read("key_scales"),
        Binding::Read("scale_of"),
        Binding::Read("positions"),
        Binding::Constant("rope"),
        Binding::Read("centroids"),
        Binding::Write("pages"),
    ],
    params: EncodeParams::LAYOUT,
};

/// The kernel of `wgsl/nsnquant/encode.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Variants for each head dimension and format, for the usual chunks of up to 64 tokens and for the
/// longest, which take the most workgroup memory.
pub fn variants() -> Vec<Variant> {
    [64, MAX_CHUNK].into_iter().flat_map(|chunk| device::covering(chunk, variant)).collect()
}

fn variant(codec: &Codec, scaled: bool) -> Variant {
    let mut constants = device::constants(codec, scaled, LANES);
    constants.push(("SCALES", codec.layout().chunk().next_power_of_two().max(64) as u32));
    Variant { constants, overrides: Vec::new() }
}

/// The variant for a codec, under key scales or not, also of other kernels around `wgsl/common/encode.wgsl`.
pub(crate) fn variant_for(codec: &DeviceCodec, scaled: bool) -> Variant {
    variant(codec.codec(), scaled)
}

/// Records the packing of `pages` chunks: page p of `out` (u32 `[pages, words]`) gets the token rows
/// `starts[p]` to `starts[p] + chunk` of `data`, a flat list of token rows `[total_rows, head_dim]`.
/// Chunks may overlap and come in any order; a start past the last whole chunk is read as that one.
/// Steps 1 to 6 of [`crate::nsnquant`] (arXiv 2505.18231).
///
/// # Errors
/// [`crate::Error::OutOfRange`] when there are fewer token rows than a chunk holds;
/// [`crate::Error::Length`] for a slice that is too short; [`crate::Error::DeviceLimit`] for sizes
/// that the device or 32-bit indices do not allow; and as [`Recorder::dispatch`].
pub fn encode(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    data: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
    starts: Slice<'_>,
    pages: usize,
    out: Slice<'_>,
) -> Result<()> {
    encode_at(rec, codec, data, dtype, total_rows, None, starts, pages, out, None)
}

/// As [`encode`], with channels of the centred tokens divided by the key scale of their page: those
/// that there are, and the number of each page's, u32 `[pages]`; one that is not there is taken as
/// the last.
///
/// # Errors
/// As [`encode`]; [`crate::Error::Length`] for scales or numbers that are too few.
pub fn encode_scaled(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    data: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
    starts: Slice<'_>,
    pages: usize,
    out: Slice<'_>,
    scales: Option<(DeviceKeyScales<'_>, Slice<'_>)>,
) -> Result<()> {
    encode_at(rec, codec, data, dtype, total_rows, None, starts, pages, out, scales)
}

/// As [`encode_scaled`], with the positions of the token rows, u32 `[total_rows]`, from which a codec
/// with a rotary embedding turns them back.
///
/// # Errors
/// As [`encode_scaled`]; [`crate::Error::Length`] for positions that are too few, or missing where the
/// codec has an embedding.
pub fn encode_at(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    data: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
    positions: Option<Slice<'_>>,
    starts: Slice<'_>,
    pages: usize,
    out: Slice<'_>,
    scales: Option<(DeviceKeyScales<'_>, Slice<'_>)>,
) -> Result<()> {
    let layout = codec.layout();
    let rows = ("data", data, dtype, total_rows);
    let Some(extent) = device::extent(layout, rows, starts, ("out", out, pages))? else {
        return Ok(());
    };
    let (values, last_scale) =
        DeviceKeyScales::bound(scales.map(|(values, _)| values), layout.head_dim(), starts)?;
    let of = scales.map_or(starts, |(_, of)| of);
    device::numbers(of, pages)?;
    let positions = device::positions(codec, positions, total_rows, starts)?;
    let hadamard = codec.codec().hadamard();
    let params = EncodeParams {
        pages: extent.pages,
        chunk: layout.chunk() as u32,
        last_start: extent.last_start,
        dtype: dtype.code(),
        page_words: layout.words() as u32,
        sign_offset: layout.sign_offset() as u32,
        s1_offset: layout.s1_offset() as u32,
        s2_offset: layout.s2_offset() as u32,
        o_offset: layout.o_offset() as u32,
        grid_offset: layout.grid_offset() as u32,
        scale: hadamard.scale(),
        last_scale,
    };
    let book = Slice::all(codec.book());
    rec.dispatch(
        &KERNEL,
        &variant(codec.codec(), scales.is_some()),
        &params,
        &[data, starts, book, values, of, positions, codec.rope(), book, out],
        Groups(pages as u64),
    )
}
