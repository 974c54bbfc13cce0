//! Sequences out of a paged cache and into it.

use std::sync::Arc;

use super::PagedCache;
use super::slabs;
use crate::cache::paged::{Exported, neighbours, plan_import};
use crate::cache::pool::{SequenceId, Snapshot};
use crate::error::Result;
use crate::gpu::{Readback, Recorder, Slice, binding_limit};
use crate::layout::pool::PageClass;

/// Sequences on their way out of the device.
#[derive(Debug)]
#[must_use = "the pages come as a future"]
pub struct Exporting {
    snapshot: Snapshot,
    pages: Vec<[Vec<Readback>; 3]>,
}

impl Exporting {
    /// The tables of the sequences, known before the pages are.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The sequences, once the recording has been submitted and has run.
    ///
    /// # Errors
    /// Those of [`Readback`].
    pub async fn get(self) -> Result<Exported> {
        let mut exported = Exported { snapshot: self.snapshot, pages: Vec::new() };
        for layer in self.pages {
            let mut pages: [Vec<u8>; 3] = Default::default();
            for (pages, parts) in pages.iter_mut().zip(layer) {
                for part in parts {
                    pages.append(&mut part.await?);
                }
            }
            exported.pages.push(pages);
        }
        Ok(exported)
    }
}

impl PagedCache {
    /// Asks for sequences as they are at the end of this recording, shared pages once. No step of
    /// theirs may be recorded behind it into the same recording.
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::snapshot`].
    pub fn export(&self, rec: &mut Recorder<'_>, sequences: &[SequenceId]) -> Result<Exporting> {
        self.check_device(rec)?;
        let (snapshot, pages) = self.pool.snapshot(sequences)?;
        let layout = self.pool.layout();
        let mut exporting = Exporting { snapshot, pages: Vec::with_capacity(pages.len()) };
        for (layer, pages) in pages.iter().enumerate() {
            let mut parts: [Vec<Readback>; 3] = Default::default();
            for class in PageClass::ALL {
                for run in neighbours(layout, class, &pages[class.index()]) {
                    let slab = self.slabs.bound(class, layer, run.slab)?;
                    let slice = Slice { offset: run.offset, size: run.size, ..slab.words };
                    parts[class.index()].push(rec.read_back(slice)?);
                }
            }
            exporting.pages.push(parts);
        }
        Ok(exporting)
    }

    /// Records the intake of sequences that were exported from a cache of either path whose pages are
    /// laid out the same way, and names them in the order of the tables. `pages` are those of
    /// [`Exported`]; until the recording has run they take as much device memory once more.
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::plan_load`]; [`crate::Error::Length`] for pages
    /// that are not those of the tables; [`crate::Error::OutOfDeviceMemory`];
    /// [`crate::Error::DeviceLost`]. No sequence has changed then.
    pub fn import(
        &mut self,
        rec: &mut Recorder<'_>,
        snapshot: &Snapshot,
        pages: &[[&[u8]; 3]],
    ) -> Result<Vec<SequenceId>> {
        self.check_device(rec)?;
        let slabs = &mut self.slabs;
        let drop = |gone: Vec<_>| Arc::make_mut(slabs).drop(&gone);
        let load = plan_import(&mut self.pool, snapshot, pages, drop)?;
        let layout = self.pool.layout();
        let mut slabs = (*self.slabs).clone();
        for (slab, buffer) in slabs::make(&self.context, layout, load.opened())? {
            slabs.put(slab, buffer);
        }
        // Free pages may still be read by what was recorded before, so they are not written past
        // the recording.
        let limits = self.context.device().limits();
        let most = binding_limit(&limits).min(limits.max_buffer_size);
        let mut copies = Vec::new();
        for (layer, pages) in pages.iter().enumerate() {
            for class in PageClass::ALL {
                let size = layout.bytes(class).max(1);
                let part = (most / size).max(1) as usize;
                let ids = load.pages(class, layer).chunks(part);
                for (ids, bytes) in ids.zip(pages[class.index()].chunks(part * size as usize)) {
                    let staging = self.context.upload("pages", bytes)?;
                    copies.push((class, layer, neighbours(layout, class, ids), staging));
                }
            }
        }
        for (class, layer, runs, staging) in copies {
            let mut from = 0;
            for run in runs {
                let slab = slabs.bound(class, layer, run.slab)?;
                rec.copy(&staging, from, slab.words.buffer, run.offset, run.size)?;
                from += run.size;
            }
        }
        let ids = self.pool.commit_load(load)?;
        self.slabs = Arc::new(slabs);
        Ok(ids)
    }
}
