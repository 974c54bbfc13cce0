//! Copies rows from page to page: the twin of `wgsl/cache/copy.wgsl`.

use super::pages::{Slabs, page, page_mut, part, row_words};
use crate::cache::pool::CopyRows;
use crate::layout::pool::{PageClass, PoolLayout};

/// Carries out a list of copies between raw pages of one class. Entries whose pages lie in no slab are
/// ignored.
pub fn copy(layout: &PoolLayout, class: PageClass, list: &[CopyRows], slabs: &mut Slabs) {
    let mut scratch = Vec::new();
    for entry in list {
        let Some(from) = page(layout, class, slabs, entry.from) else { continue };
        scratch.clear();
        scratch.extend_from_slice(from);
        let Some(to) = page_mut(layout, class, slabs, entry.to) else { continue };
        let rows = (entry.rows as usize).min(layout.rows(class));
        for (index, words) in row_words(layout).into_iter().enumerate() {
            let first = part(layout, class, index);
            let range = first..first + rows * words;
            to[range.clone()].copy_from_slice(&scratch[range]);
        }
    }
}
