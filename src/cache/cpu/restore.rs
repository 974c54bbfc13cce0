//! Unpacks rows of packed pages: the twin of `wgsl/cache/restore.wgsl`.

use half::f16;

use super::pages::{Slabs, page, page_mut, part};
use super::rows::convert;
use crate::cache::paged::FetchRows;
use crate::cache::pool::Restore;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nsnquant::{Codec, cpu};
use crate::shape::{Dtype, Elements};

/// Carries out a list of restores from packed pages into raw pages of `raw` elements, positions
/// included, keys under the scales that the entries name if there are any. Entries whose pages lie in
/// no slab are ignored.
pub fn restore(
    layout: &PoolLayout,
    codecs: &[Codec; 2],
    list: &[Restore],
    raw: Dtype,
    from: &Slabs,
    to: &mut Slabs,
    scales: Option<&[f16]>,
) {
    for entry in list {
        let Some(packed) = page(layout, PageClass::Packed, from, entry.from) else { continue };
        let Some(to) = page_mut(layout, PageClass::Raw, to, entry.to) else { continue };
        let rows = (entry.rows as usize).min(layout.chunk());
        for (side, codec) in codecs.iter().enumerate() {
            let first = part(layout, PageClass::Raw, side);
            let words = rows * layout.row_words(side);
            let channels = scales.filter(|_| side == 0);
            let channels = channels.and_then(|scales| scale_of(layout, scales, entry.scale));
            unpack(layout, codec, side, packed, raw, &mut to[first..first + words], channels);
        }
        let [first, last] = [PageClass::Packed, PageClass::Raw].map(|class| part(layout, class, 2));
        to[last..last + rows].copy_from_slice(&packed[first..first + rows]);
    }
}

/// Unpacks one side (0 keys, 1 values) of a list of pages into `out`, words of a dense tensor
/// `[rows, head_dim]` of `dtype`. Entries whose pages lie in no slab are ignored, as are rows beyond
/// the tensor. `scales` are for keys.
pub fn restore_dense(
    layout: &PoolLayout,
    codec: &Codec,
    side: usize,
    list: &[FetchRows],
    from: &Slabs,
    dtype: Dtype,
    out: &mut [u32],
    scales: Option<&[f16]>,
) {
    let words = layout.head_dims()[side] * dtype.bytes() / 4;
    let held = out.len() / words;
    for entry in list {
        let Some(packed) = page(layout, PageClass::Packed, from, entry.from) else { continue };
        let first = (entry.to as usize).min(held);
        let rows = (entry.rows as usize).min(layout.chunk()).min(held - first);
        let out = &mut out[first * words..(first + rows) * words];
        let channels = scales.and_then(|scales| scale_of(layout, scales, entry.scale));
        unpack(layout, codec, side, packed, dtype, out, channels);
    }
}

/// One of the key scales `[scales, head_dim_k]`.
fn scale_of<'a>(layout: &PoolLayout, scales: &'a [f16], number: u32) -> Option<&'a [f16]> {
    scales.chunks_exact(layout.head_dims()[0]).nth(number as usize)
}

/// Unpacks as many tokens of one side of a page as `out` holds.
fn unpack(
    layout: &PoolLayout,
    codec: &Codec,
    side: usize,
    packed: &[u32],
    dtype: Dtype,
    out: &mut [u32],
    channels: Option<&[f16]>,
) {
    let first = part(layout, PageClass::Packed, side);
    let page = &packed[first..first + codec.layout().words()];
    let places = part(layout, PageClass::Packed, 2);
    let positions = &packed[places..places + layout.chunk()];
    let mut rows = vec![0.0; layout.chunk() * layout.head_dims()[side]];
    cpu::decode_page(codec, page, positions, &mut rows, channels);
    let count = out.len() * 4 / dtype.bytes();
    convert(Elements::F32(&rows[..count]), dtype, out);
}
