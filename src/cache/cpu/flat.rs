//! The cache laid out as attention reads it.

use super::LayerCache;
use crate::attention::{CacheView, PackedView};
use crate::cache::config::SIDES;
use crate::cache::plan::Tables;

/// A [`LayerCache`] with its pages row after row. The raw rows are borrowed, the pages copied.
#[derive(Debug)]
pub struct Flat<'a> {
    cache: &'a LayerCache,
    tables: Tables,
    pages: [Vec<u32>; 2],
}

impl<'a> Flat<'a> {
    pub(super) fn new(cache: &'a LayerCache) -> Self {
        let rows = cache.config.rows;
        let pages = SIDES.map(|side| {
            let size = cache.codecs[side].layout().words();
            (0..rows)
                .flat_map(|row| cache.pages.iter().map(move |page| (row, page)))
                .flat_map(|(row, page)| &page.words[side][row * size..(row + 1) * size])
                .copied()
                .collect()
        });
        Self { cache, tables: Tables::new(&cache.frontier, rows), pages }
    }

    /// The rows for [`crate::attention::cpu::attend`].
    pub fn view(&self) -> CacheView<'_> {
        let (cache, tables) = (self.cache, &self.tables);
        let [keys, values] = &*cache.codecs;
        let [key_pages, value_pages] = &self.pages;
        CacheView {
            kv_rows: cache.config.rows,
            head_dim_k: cache.config.head_dim_k,
            head_dim_v: cache.config.head_dim_v,
            raw_offsets: &tables.raw_offsets,
            raw_keys: cache.held(0),
            raw_values: cache.held(1),
            raw_positions: &tables.raw_positions,
            packed: (!cache.pages.is_empty()).then_some(PackedView {
                key_scales: None,
                keys,
                values,
                page_offsets: &tables.page_offsets,
                key_pages,
                value_pages,
                page_positions: &tables.page_positions,
            }),
        }
    }
}
