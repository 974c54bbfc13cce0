//! Gathers the kept rows of a prompt: the twin of `wgsl/cache/keep.wgsl`.

use super::pages::{Slabs, page, page_mut, part, row_words};
use crate::cache::pool::Gather;
use crate::layout::pool::{PageClass, PageId, PoolLayout};

/// Carries out a list of gathers from raw pages into raw pages. `kept` are the positions kept, head
/// after head, of a prompt of `tokens` tokens; `table` are the pages of the heads. Positions that are
/// no rows of the prompt behind its sinks, and pages that lie in no slab, are ignored.
pub fn keep(
    layout: &PoolLayout,
    list: &[Gather],
    kept: &[u32],
    tokens: u32,
    table: &[PageId],
    slabs: &mut Slabs,
) {
    let class = PageClass::Raw;
    let (sinks, chunk) = (layout.sinks() as u32, layout.chunk() as u32);
    let mut row_of_page = Vec::new();
    for entry in list {
        let first = (entry.kept as usize).min(kept.len());
        let rows = (entry.rows as usize).min(layout.chunk()).min(kept.len() - first);
        for (row, &position) in kept[first..first + rows].iter().enumerate() {
            if position < sinks || position >= tokens {
                continue;
            }
            let behind = position - sinks;
            let place = (entry.table as usize).saturating_add((behind / chunk) as usize);
            let Some(number) = table.get(place) else { continue };
            let Some(from) = page(layout, class, slabs, *number) else { continue };
            let slot = (behind % chunk) as usize;
            row_of_page.clear();
            for (index, words) in row_words(layout).into_iter().enumerate().take(2) {
                let at = part(layout, class, index) + slot * words;
                row_of_page.extend_from_slice(&from[at..at + words]);
            }
            let Some(to) = page_mut(layout, class, slabs, entry.to) else { continue };
            let mut rest = &row_of_page[..];
            for (index, words) in row_words(layout).into_iter().enumerate().take(2) {
                let at = part(layout, class, index) + row * words;
                let (own, others) = rest.split_at(words);
                to[at..at + words].copy_from_slice(own);
                rest = others;
            }
            to[part(layout, class, 2) + row] = position;
        }
    }
}
