//! Unpacks pages.

use half::f16;

use crate::error::Result;
use crate::nsnquant::codec::Codec;
use crate::nsnquant::key_scale::{KeyScales, factor};

/// Largest magnitude of a decoded value.
const LIMIT: f32 = 3.4e38;

/// Unpacks pages `[pages, words]` into token rows `[pages * chunk, head_dim]`:
/// `s1 * (s2 * H^T c + o)`, with c the token's centroids, at norm sqrt(d) with
/// [`Gain::TokenNorm`](crate::nsnquant::Gain::TokenNorm). Values beyond f32
/// saturate at 3.4e38. What [`crate::nsnquant`] says of decoding (arXiv 2505.18231).
///
/// # Errors
/// [`crate::Error::Length`] when `pages` is no whole number of pages, and for a codec that needs
/// positions.
pub fn decode(codec: &Codec, pages: &[u32]) -> Result<Vec<f32>> {
    decode_at(codec, pages, &[], None)
}

/// As [`decode`], with what is not the mean multiplied by the key scale of its page.
///
/// # Errors
/// As [`decode`] and [`KeyScales::check`].
pub fn decode_scaled(
    codec: &Codec,
    pages: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<f32>> {
    decode_at(codec, pages, &[], scales)
}

/// As [`decode_scaled`], with the positions `[pages * chunk]` of the rows, at which a codec with a
/// rotary embedding restores `s1 * (s2 * H^T c + R_t o)`, `R_t o` being the mean turned to position t.
///
/// # Errors
/// As [`decode_scaled`]; [`crate::Error::Length`] for another number of positions, of which there may
/// be none where the codec has no embedding.
pub fn decode_at(
    codec: &Codec,
    pages: &[u32],
    positions: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<f32>> {
    let layout = codec.layout();
    let count = codec.page_count("pages", pages.len())?;
    codec.check_positions(positions, count * layout.chunk())?;
    if let Some(scales) = scales {
        scales.check(layout.head_dim(), count)?;
    }
    let values = layout.chunk() * layout.head_dim();
    let mut out = vec![0.0; count * values];
    let work = |(number, (page, rows)): (usize, (&[u32], &mut [f32]))| {
        let channels = scales.map(|scales| scales.of(number, layout.head_dim()));
        let first = number * layout.chunk();
        let own = positions.get(first..first + layout.chunk()).unwrap_or(&[]);
        decode_page(codec, page, own, rows, channels);
    };
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        pages.par_chunks(layout.words()).zip(out.par_chunks_mut(values)).enumerate().for_each(work);
    }
    #[cfg(not(feature = "parallel"))]
    pages.chunks(layout.words()).zip(out.chunks_mut(values)).enumerate().for_each(work);
    Ok(out)
}

/// Unpacks one page into `rows`, `[chunk, head_dim]`, at `positions` `[chunk]`, of which there may be
/// none where the codec has no rotary embedding, with the key scale that it is packed under, if there
/// is one.
///
/// # Panics
/// When `page`, `rows` or `positions` is not of the layout's size.
pub fn decode_page(
    codec: &Codec,
    page: &[u32],
    positions: &[u32],
    rows: &mut [f32],
    channels: Option<&[f16]>,
) {
    let layout = codec.layout();
    let dim = layout.head_dim();
    assert!(page.len() == layout.words() && rows.len() == layout.chunk() * dim);
    let mut means = [0.0; crate::shape::MAX_HEAD_DIM];
    let means = &mut means[..dim];
    codec.mean(page, means);
    let mut turned = [0.0; crate::shape::MAX_HEAD_DIM];
    let turned = &mut turned[..dim];
    for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
        let gain = codec.centroids(page, token, row) * codec.hadamard().scale();
        codec.hadamard().inverse_unscaled(row);
        for (value, channel) in row.iter_mut().zip(channels.unwrap_or(&[])) {
            *value *= factor(*channel);
        }
        let (s1, s2) = (codec.s1(page, token), codec.s2(page, token));
        let limit = LIMIT / s1.max(1.0);
        let means = match codec.rope() {
            None => &*means,
            Some(rope) => {
                turned.copy_from_slice(means);
                rope.turn(turned, positions[token]);
                &*turned
            }
        };
        for (value, o) in row.iter_mut().zip(means) {
            *value = s1 * (s2 * (*value * gain) + *o).clamp(-limit, limit);
        }
    }
}
