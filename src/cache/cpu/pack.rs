//! Packs raw pages: the twin of `wgsl/cache/pack.wgsl`.

use super::pages::{Slabs, page, page_mut, part, raw_rows};
use crate::cache::pool::Encode;
use crate::error::Result;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nsnquant::{Codec, cpu};
use crate::primitives::parallel;
use crate::shape::Dtype;

/// Carries out a list of packings from raw pages of `raw` elements into packed pages, positions
/// included. Entries whose pages lie in no slab are ignored.
///
/// # Errors
/// [`crate::Error::Length`] when the codecs belong to other pages.
pub fn pack(
    layout: &PoolLayout,
    codecs: &[Codec; 2],
    list: &[Encode],
    raw: Dtype,
    from: &Slabs,
    to: &mut Slabs,
) -> Result<()> {
    let chunk = layout.chunk();
    // Those that can be carried out, with the pages that they read.
    let known = list.iter().filter_map(|entry| {
        page_mut(layout, PageClass::Packed, to, entry.to)?;
        page(layout, PageClass::Raw, from, entry.from).map(|page| (entry.to, page))
    });
    let tasks: Vec<_> = known.collect();
    let pages = parallel::map(tasks, |(to, page)| -> Result<_> {
        let first = part(layout, PageClass::Raw, 2);
        let positions = &page[first..first + chunk];
        let mut sides = [Vec::new(), Vec::new()];
        for (side, codec) in codecs.iter().enumerate() {
            let data = raw_rows(layout, PageClass::Raw, page, side, chunk, raw);
            sides[side] = cpu::encode_at(codec, data, positions, &[0], None)?;
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
