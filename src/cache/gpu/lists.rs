//! The lists of a step on the device.

use bytemuck::Pod;

use crate::cache::pool::LayerStep;
use crate::error::{Error, Result};
use crate::gpu::{Context, Slice};
use crate::layout::pool::{PageClass, PageId, PoolLayout};

use super::pages::List;
use super::scales::ScaleWork;

/// Entries of one list that read one slab and write one slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// The work of one layer, in one buffer.
#[derive(Debug)]
pub(super) struct Lists {
    words: wgpu::Buffer,
    pub(super) sink_copies: Vec<Run>,
    pub(super) raw_copies: Vec<Run>,
    pub(super) restores: Vec<Run>,
    pub(super) sink_writes: Vec<Run>,
    pub(super) raw_writes: Vec<Run>,
    pub(super) gathers: Vec<Run>,
    pub(super) encodes: Vec<Run>,
    pub(super) scales: ScaleWork,
    /// First word and pages of the tables of a gathering.
    pub(super) table: (u32, u32),
    /// Slabs that the tables name.
    pub(super) table_slabs: Vec<u32>,
}

/// Words of lists, one after another.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<u32>);

impl Words {
    /// Adds a list and cuts it where the slabs (from, to) of its entries change.
    pub(super) fn push<T: Pod>(
        &mut self,
        list: &[T],
        slabs: impl Fn(&T) -> (u32, u32),
    ) -> Result<Vec<Run>> {
        let each = size_of::<T>() / 4;
        let start = self.0.len();
        self.0.extend_from_slice(bytemuck::cast_slice(list));
        let (got, max) = (self.0.len() as u64, u64::from(u32::MAX));
        if got > max {
            return Err(Error::OutOfRange { argument: "words of lists", got, min: 0, max });
        }
        let mut first = start as u32;
        let runs = list.chunk_by(|a, b| slabs(a) == slabs(b)).map(|part| {
            let (from, to) = slabs(&part[0]);
            let run = Run { first, count: part.len() as u32, from, to };
            first += (part.len() * each) as u32;
            run
        });
        Ok(runs.collect())
    }

    pub(super) fn upload(self, context: &Context) -> Result<wgpu::Buffer> {
        context.upload("page lists", bytemuck::cast_slice(&self.0))
    }
}

impl Lists {
    /// Uploads the work of a layer; `None` when there is none.
    pub(super) fn new(
        context: &Context,
        layout: &PoolLayout,
        step: &LayerStep,
    ) -> Result<Option<Self>> {
        use PageClass::{Packed, Raw, Sink};
        let slab = |class, page: PageId| layout.slab_of(class, page);
        let mut words = Words::default();
        let mut copies = |list: &[_], class| {
            words.push(list, |c: &crate::cache::pool::CopyRows| {
                (slab(class, c.from), slab(class, c.to))
            })
        };
        let sink_copies = copies(&step.sink_copies, Sink)?;
        let raw_copies = copies(&step.raw_copies, Raw)?;
        let restores = words.push(&step.restores, |r| (slab(Packed, r.from), slab(Raw, r.to)))?;
        let sink_writes = words.push(&step.sink_writes, |w| (0, slab(Sink, w.page)))?;
        let raw_writes = words.push(&step.raw_writes, |w| (0, slab(Raw, w.page)))?;
        let gathers = words.push(&step.gathers, |g| (0, slab(Raw, g.to)))?;
        let encodes = words.push(&step.encodes, |e| (slab(Raw, e.from), slab(Packed, e.to)))?;
        let scales = ScaleWork::new(&mut words, layout, step)?;
        let first = words.0.len() as u32;
        words.push(&step.gather_pages, |_| (0, 0))?;
        let table = (first, words.0.len() as u32 - first);
        let mut table_slabs: Vec<u32> =
            step.gather_pages.iter().map(|page| slab(Raw, *page)).collect();
        table_slabs.sort_unstable();
        table_slabs.dedup();
        if words.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            words: words.upload(context)?,
            sink_copies,
            raw_copies,
            restores,
            sink_writes,
            raw_writes,
            gathers,
            encodes,
            scales,
            table,
            table_slabs,
        }))
    }

    pub(super) fn words(&self) -> Slice<'_> {
        Slice::all(&self.words)
    }

    pub(super) fn part(&self, run: &Run) -> List<'_> {
        List { words: self.words(), first: run.first, count: run.count }
    }
}
