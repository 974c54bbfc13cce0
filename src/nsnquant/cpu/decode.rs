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
/// saturate at 3.4e38.
///
/// # Errors
/// [`crate::Error::Length`] when `pages` is no whole number of pages.
pub fn decode(codec: &Codec, pages: &[u32]) -> Result<Vec<f32>> {
    decode_scaled(codec, pages, None)
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
    let layout = codec.layout();
    let count = codec.page_count("pages", pages.len())?;
    if let Some(scales) = scales {
        scales.check(layout.head_dim(), count)?;
    }
    let values = layout.chunk() * layout.head_dim();
    let mut out = vec![0.0; count * values];
    let work = |(number, (page, rows)): (usize, (&[u32], &mut [f32]))| {
        let channels = scales.map(|scales| scales.of(number, layout.head_dim()));
        decode_page(codec, page, rows, channels);
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

/// Unpacks one page into `rows`, `[chunk, head_dim]`, with the key scale that it is packed under, if
/// there is one.
///
/// # Panics
/// When `page` or `rows` is not of the layout's size.
pub fn decode_page(codec: &Codec, page: &[u32], rows: &mut [f32], channels: Option<&[f16]>) {
    let layout = codec.layout();
    let dim = layout.head_dim();
    assert!(page.len() == layout.words() && rows.len() == layout.chunk() * dim);
    let mut means = [0.0; crate::shape::MAX_HEAD_DIM];
    let means = &mut means[..dim];
    codec.mean(page, means);
    for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
        let gain = codec.centroids(page, token, row) * codec.hadamard().scale();
        codec.hadamard().inverse_unscaled(row);
        for (value, channel) in row.iter_mut().zip(channels.unwrap_or(&[])) {
            *value *= factor(*channel);
        }
        let (s1, s2) = (codec.s1(page, token), codec.s2(page, token));
        let limit = LIMIT / s1.max(1.0);
        for (value, o) in row.iter_mut().zip(means.iter()) {
            *value = s1 * (s2 * (*value * gain) + *o).clamp(-limit, limit);
        }
    }
}
