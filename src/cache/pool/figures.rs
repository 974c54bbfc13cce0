//! What a pool reports about its memory.

use super::pages::Pages;
use super::pool::Pool;
use super::sequence::SequenceId;
use crate::error::Result;
use crate::layout::pool::{PageClass, PageId, PoolLayout};

/// Bytes of pages by what they are for. The sum is that of the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Codes of packed pages.
    pub codes: u64,
    /// Scales of packed tokens.
    pub scales: u64,
    /// Channel means of packed chunks.
    pub means: u64,
    /// Key scales of heads, in sink pages.
    pub key_scales: u64,
    /// Raw keys and values of sinks.
    pub sinks: u64,
    /// Raw keys and values of tails.
    pub tail: u64,
    /// Positions of rows, 4 bytes each.
    pub positions: u64,
    /// What rounds parts up to whole groups of words.
    pub padding: u64,
}

impl Parts {
    /// The parts of so many pages of each class.
    pub fn new(layout: &PoolLayout, pages: [u64; 3]) -> Self {
        let [sink, packed, raw] = pages;
        let row_bytes = 4 * (layout.row_words(0) + layout.row_words(1)) as u64;
        let sides = layout.packed().map_or(&[][..], |sides| &sides[..]);
        let sum = |of: fn(&crate::layout::PageLayout) -> usize| {
            packed * sides.iter().map(|side| of(side) as u64).sum::<u64>()
        };
        let rows = |class: PageClass| pages[class.index()] * layout.rows(class) as u64;
        let mut parts = Self {
            codes: sum(|side| side.code_bytes()),
            scales: sum(|side| side.scale_bytes()),
            means: sum(|side| side.mean_bytes()),
            key_scales: sink * 4 * layout.scale_words() as u64,
            sinks: sink * layout.sinks() as u64 * row_bytes,
            tail: raw * layout.chunk() as u64 * row_bytes,
            positions: 4 * PageClass::ALL.map(rows).iter().sum::<u64>(),
            padding: 0,
        };
        let held: u64 = PageClass::ALL.map(|c| pages[c.index()] * layout.bytes(c)).iter().sum();
        parts.padding = held - parts.total();
        parts
    }

    /// Sum of all parts, in bytes.
    pub const fn total(&self) -> u64 {
        self.codes
            + self.scales
            + self.means
            + self.key_scales
            + self.sinks
            + self.tail
            + self.positions
            + self.padding
    }
}

/// What a pool holds: counts of pages, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// Sequences that live.
    pub sequences: usize,
    /// Pages held, by class ([`PageClass::index`]), shared ones once.
    pub pages: [u64; 3],
    /// Those of them that several sequences hold.
    pub shared: [u64; 3],
    /// Slabs allocated, by class.
    pub slabs: [u64; 3],
    /// Bytes of the pages held, by part.
    pub parts: Parts,
    /// Bytes of the slabs: what is really allocated.
    pub allocated_bytes: u64,
    /// Bytes that slabs may take.
    pub budget_bytes: u64,
}

/// What a sequence holds: counts of rows and pages, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceFigures {
    /// Tokens seen: the next position.
    pub seen: u32,
    /// Rows held by all heads of all layers.
    pub rows: u64,
    /// Rows of them that are packed.
    pub packed_rows: u64,
    /// Pages held, by class ([`PageClass::index`]).
    pub pages: [u64; 3],
    /// Those of them that other sequences hold too.
    pub shared: [u64; 3],
    /// Bytes of the pages held, by part.
    pub parts: Parts,
    /// Bytes that all tokens seen would take as 16-bit keys and values in all heads.
    pub full_bytes: u64,
}

impl SequenceFigures {
    /// Bytes without the pool over bytes in it, a shared page counted in full; 1 for a sequence
    /// without pages.
    pub fn ratio(&self) -> f64 {
        match self.parts.total() {
            0 => 1.0,
            held => self.full_bytes as f64 / held as f64,
        }
    }
}

impl Pool {
    /// Bytes of all slabs, which the budget limits.
    pub fn allocated_bytes(&self) -> u64 {
        let slabs = self.slab_counts();
        PageClass::ALL
            .map(|class| slabs[class.index()] * self.layout.slab_bytes(class))
            .iter()
            .sum()
    }

    /// Numbers of the slabs of a class in one layer; none for a layer that there is not.
    pub fn slabs(&self, class: PageClass, layer: usize) -> impl Iterator<Item = u32> + '_ {
        self.pages.get(layer).into_iter().flat_map(move |pages| pages[class.index()].slabs())
    }

    /// Slabs of all layers, by class.
    fn slab_counts(&self) -> [u64; 3] {
        self.sum(|pages| pages.slabs().count() as u64)
    }

    /// A number of the pages of each class, summed over the layers.
    fn sum(&self, of: impl Fn(&Pages) -> u64) -> [u64; 3] {
        PageClass::ALL.map(|class| self.pages.iter().map(|pages| of(&pages[class.index()])).sum())
    }

    /// Owners of a page of a layer; 0 for one that is not held.
    pub fn owners(&self, class: PageClass, layer: usize, page: PageId) -> u32 {
        self.pages.get(layer).map_or(0, |pages| pages[class.index()].refs(&self.layout, page))
    }

    /// What the pool holds now.
    pub fn figures(&self) -> PoolFigures {
        let pages = self.sum(Pages::used);
        PoolFigures {
            sequences: self.sequences().count(),
            pages,
            shared: self.sum(Pages::shared),
            slabs: self.slab_counts(),
            parts: Parts::new(&self.layout, pages),
            allocated_bytes: self.allocated_bytes(),
            budget_bytes: self.config.byte_budget,
        }
    }

    /// What a sequence holds.
    ///
    /// # Errors
    /// [`crate::Error::UnknownSequence`].
    pub fn sequence_figures(&self, sequence: SequenceId) -> Result<SequenceFigures> {
        let sequence = self.sequence("sequence", sequence)?;
        let (mut pages, mut shared, mut rows) = ([0; 3], [0; 3], 0);
        for (place, head) in sequence.heads.iter().enumerate() {
            let layer = place / self.config.heads;
            let sink = core::slice::from_ref(&head.sink);
            let lists = [if head.sink.is_none() { &[] } else { sink }, &head.packed, &head.tail];
            for (class, list) in PageClass::ALL.into_iter().zip(lists) {
                let several = |page: &&PageId| self.owners(class, layer, **page) > 1;
                pages[class.index()] += list.len() as u64;
                shared[class.index()] += list.iter().filter(several).count() as u64;
            }
            rows += u64::from(head.rows);
        }
        let tokens = u64::from(sequence.seen) * sequence.heads.len() as u64;
        let row_bytes = 4 * (self.layout.row_words(0) + self.layout.row_words(1)) as u64;
        Ok(SequenceFigures {
            seen: sequence.seen,
            rows,
            packed_rows: pages[PageClass::Packed.index()] * self.layout.chunk() as u64,
            pages,
            shared,
            parts: Parts::new(&self.layout, pages),
            full_bytes: tokens * row_bytes,
        })
    }
}
