//! Unpacks pages.

use crate::error::Result;
use crate::nsnquant::codec::Codec;

/// Largest magnitude of a decoded value.
const LIMIT: f32 = 3.4e38;

/// Unpacks pages `[pages, words]` into token rows `[pages * chunk, head_dim]`:
/// `s1 * (s2 * H^T c + o)`, with c the token's centroids at norm sqrt(d). Values beyond f32
/// saturate at 3.4e38.
///
/// # Errors
/// [`crate::Error::Length`] when `pages` is no whole number of pages.
pub fn decode(codec: &Codec, pages: &[u32]) -> Result<Vec<f32>> {
    let layout = codec.layout();
    let count = codec.page_count("pages", pages.len())?;
    let values = layout.chunk() * layout.head_dim();
    let mut out = vec![0.0; count * values];
    let work = |(page, rows): (&[u32], &mut [f32])| decode_page(codec, page, rows);
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        pages.par_chunks(layout.words()).zip(out.par_chunks_mut(values)).for_each(work);
    }
    #[cfg(not(feature = "parallel"))]
    pages.chunks(layout.words()).zip(out.chunks_mut(values)).for_each(work);
    Ok(out)
}

/// Unpacks one page into `rows`, `[chunk, head_dim]`.
///
/// # Panics
/// When `page` or `rows` is not of the layout's size.
pub fn decode_page(codec: &Codec, page: &[u32], rows: &mut [f32]) {
    let layout = codec.layout();
    let dim = layout.head_dim();
    assert!(page.len() == layout.words() && rows.len() == layout.chunk() * dim);
    let mut means = [0.0; crate::shape::MAX_HEAD_DIM];
    let means = &mut means[..dim];
    for (channel, o) in means.iter_mut().enumerate() {
        *o = codec.o(page, channel);
    }
    for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
        let gain = codec.centroids(page, token, row) * codec.hadamard().scale();
        codec.hadamard().inverse_unscaled(row);
        let (s1, s2) = (codec.s1(page, token), codec.s2(page, token));
        let limit = LIMIT / s1.max(1.0);
        for (value, o) in row.iter_mut().zip(means.iter()) {
            *value = s1 * (s2 * (*value * gain) + *o).clamp(-limit, limit);
        }
    }
}
