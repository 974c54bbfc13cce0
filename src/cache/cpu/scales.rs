//! Key scales in sink pages: gathers them, the twin of `wgsl/cache/scales.wgsl`, and fixes them.

use half::f16;

use super::pages::{Slabs, page, page_mut, raw_rows};
use crate::cache::paged::ScaleRow;
use crate::cache::pool::FixScale;
use crate::error::Result;
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::nsnquant::{check_factors, cpu};
use crate::shape::Dtype;

/// The key scales of a list of sink pages, `[rows, head_dim_k]`: rows that no entry names, and factors
/// that no encoder made, are 1. Entries whose pages lie in no slab are ignored, as are rows beyond the
/// result.
pub fn scales(layout: &PoolLayout, list: &[ScaleRow], slabs: &Slabs, rows: usize) -> Vec<f16> {
    let (dim, first) = (layout.head_dims()[0], layout.scale_offset());
    let mut out = vec![f16::ONE; rows * dim];
    for entry in list {
        let page = page(layout, PageClass::Sink, slabs, entry.page);
        let to = out.chunks_exact_mut(dim).nth(entry.row as usize);
        let (Some(page), Some(to)) = (page, to) else { continue };
        to.copy_from_slice(bytemuck::cast_slice(&page[first..first + layout.scale_words()]));
        for factor in to {
            if check_factors(&[*factor]).is_err() {
                *factor = f16::ONE;
            }
        }
    }
    out
}

/// Fixes a list of key scales from the keys of raw pages of `raw` elements. Entries of which a page
/// lies in no slab are ignored.
///
/// # Errors
/// Those of [`cpu::squares`].
pub fn fix(
    layout: &PoolLayout,
    list: &[FixScale],
    pages: &[PageId],
    raw: Dtype,
    from: &Slabs,
    to: &mut Slabs,
) -> Result<()> {
    let (dim, chunk, first) = (layout.head_dims()[0], layout.chunk(), layout.scale_offset());
    for entry in list {
        let of = |id: &PageId| page(layout, PageClass::Raw, from, *id);
        let own = pages.iter().skip(entry.first as usize).take(entry.pages as usize).map(of);
        let Some(own) = own.collect::<Option<Vec<&[u32]>>>() else { continue };
        let Some(to) = page_mut(layout, PageClass::Sink, to, entry.to) else { continue };
        let mut squares = Vec::with_capacity(own.len() * dim);
        for page in &own {
            let keys = raw_rows(layout, PageClass::Raw, page, 0, chunk, raw);
            squares.extend(cpu::squares(keys, dim, &[[0, chunk as u32]])?);
        }
        let scale = cpu::fix(&squares, dim, own.len() * chunk);
        let to = &mut to[first..first + layout.scale_words()];
        bytemuck::cast_slice_mut(to).copy_from_slice(&scale);
    }
    Ok(())
}
