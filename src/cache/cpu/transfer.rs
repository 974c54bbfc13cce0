//! Sequences out of a paged cache and into it.

use super::PagedCache;
use super::paged::drop_slabs;
use super::pages::{page, page_mut};
use crate::cache::paged::{Exported, plan_import};
use crate::cache::pool::{SequenceId, Snapshot};
use crate::error::Result;
use crate::layout::pool::PageClass;

impl PagedCache {
    /// Copies sequences out, shared pages once.
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::snapshot`].
    pub fn export(&self, sequences: &[SequenceId]) -> Result<Exported> {
        let (snapshot, pages) = self.pool.snapshot(sequences)?;
        let layout = self.pool.layout();
        let mut exported = Exported { snapshot, pages: Vec::with_capacity(pages.len()) };
        for (slabs, pages) in self.slabs.iter().zip(pages) {
            exported.pages.push(PageClass::ALL.map(|class| {
                let list = &pages[class.index()];
                let mut bytes = Vec::with_capacity(list.len() * layout.bytes(class) as usize);
                for id in list {
                    let words = page(layout, class, &slabs[class.index()], *id).unwrap_or(&[]);
                    bytes.extend_from_slice(bytemuck::cast_slice(words));
                }
                bytes
            }));
        }
        Ok(exported)
    }

    /// Takes sequences in that were exported from a cache of either path whose pages are laid out
    /// the same way, and names them in the order of the tables. `pages` are those of [`Exported`].
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::plan_load`]; [`crate::Error::Length`] for pages that are
    /// not those of the tables. Nothing has changed then.
    pub fn import(&mut self, snapshot: &Snapshot, pages: &[[&[u8]; 3]]) -> Result<Vec<SequenceId>> {
        let slabs = &mut self.slabs;
        let load = plan_import(&mut self.pool, snapshot, pages, |gone| drop_slabs(slabs, gone))?;
        let made = self.make(load.opened())?;
        self.open(made);
        let layout = self.pool.layout();
        for (layer, (slabs, pages)) in self.slabs.iter_mut().zip(pages).enumerate() {
            for class in PageClass::ALL {
                let size = (layout.bytes(class) as usize).max(1);
                let from = pages[class.index()].chunks_exact(size);
                for (id, from) in load.pages(class, layer).iter().zip(from) {
                    if let Some(to) = page_mut(layout, class, &mut slabs[class.index()], *id) {
                        bytemuck::cast_slice_mut(to).copy_from_slice(from);
                    }
                }
            }
        }
        self.pool.commit_load(load)
    }
}
