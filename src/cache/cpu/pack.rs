//! Packs raw pages: the twin of `wgsl/cache/pack.wgsl`.

use half::f16;

use super::pages::{Slabs, page, page_mut, part, raw_rows};
use crate::cache::pool::Encode;
use crate::error::Result;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nsnquant::{Codec, KeyScales, cpu};
use crate::primitives::parallel;
use crate::shape::Dtype;

/// Carries out a list of packings from raw pages of `raw` elements into packed pages, positions
/// included, keys under the scales that the entries name if there are any. Entries whose pages lie in
/// no slab are ignored.
///
/// # Errors
/// [`crate::Error::Length`] when the codecs belong to other pages; those of
/// [`KeyScales::check`](crate::nsnquant::KeyScales::check).
pub fn pack(
    layout: &PoolLayout,
    codecs: &[Codec; 2],
    list: &[Encode],
    raw: Dtype,
    from: &Slabs,
    to: &mut Slabs,
    scales: Option<&[f16]>,
) -> Result<()> {
    let chunk = layout.chunk();
    // Those that can be carried out, with the pages that they read.
    let known = list.iter().filter_map(|entry| {
        page_mut(layout, PageClass::Packed, to, entry.to)?;
        page(layout, PageClass::Raw, from, entry.from).map(|page| (entry.to, entry.scale, page))
    });
    let tasks: Vec<_> = known.collect();
    let pages = parallel::map(tasks, |(to, scale, page)| -> Result<_> {
        let first = part(layout, PageClass::Raw, 2);
        let positions = &page[first..first + chunk];
        let mut sides = [Vec::new(), Vec::new()];
        let of_page = [scale];
        for (side, codec) in codecs.iter().enumerate() {
            let data = raw_rows(layout, PageClass::Raw, page, side, chunk, raw);
            let scales = scales.filter(|_| side == 0);
            let scales = scales.map(|values| KeyScales { values, of_page: &of_page });
            sides[side] = cpu::encode_at(codec, data, positions, &[0], scales.as_ref())?;
        }
        Ok((to, sides, positions))
    });
    for done in pages {
        let (number, sides, positions) = done?;
        let Some(page) = page_mut(layout, PageClass::Packed, to, number) else { continue };
        for (index, words) in [&sides[0], &sides[1], positions].into_iter().enumerate() {
            let first = part(layout, PageClass::Packed, index);
            page[first..first + words.len()].copy_from_slice(words);
        }
    }
    Ok(())
}
