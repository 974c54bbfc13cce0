//! What is to be asked of a pool, and what both paths do about it.

use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::sequence::SequenceId;
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId};

/// Tokens of one sequence of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens to add to it or to drop from it; 0 is allowed.
    pub tokens: u32,
}

/// What a layer keeps of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep<'a> {
    /// Every token of the prompt.
    All,
    /// So many rows of each head, `[layers, heads]` for the layers that are finished. The sinks are
    /// counted in, and the first rows of the prompt, up to the pool's sinks, must be among them.
    Counts(&'a [u32]),
}

/// Something that changes the rows of sequences.
///
/// Every member of a batch comes once. A step is for all layers, except [`Operation::Finish`].
#[derive(Clone, Debug)]
pub enum Operation<'a> {
    /// Adds rows of a prompt; nothing is packed before the prompt is finished.
    Prefill {
        /// Sequences and tokens.
        parts: &'a [Part],
    },
    /// Declares the prompt finished in some layers: drops what is not kept, packs what lies behind
    /// the frontier. Layers may be finished one by one, so that not all need memory at once.
    Finish {
        /// The sequence.
        sequence: SequenceId,
        /// Layers whose prompt ends, from 0.
        layers: Range<usize>,
        /// Rows that stay.
        keep: Keep<'a>,
    },
    /// Adds rows behind a finished prompt. A sequence without a prompt needs no finish.
    Append {
        /// Sequences and tokens.
        parts: &'a [Part],
        /// Whether chunks that the frontier passes are packed at once; without it they wait for an
        /// [`Operation::Flush`] or the next append, so that attention sees them raw first.
        flush: bool,
    },
    /// Packs what lies behind the frontier.
    Flush {
        /// The sequences whose full chunks are packed.
        sequences: &'a [SequenceId],
    },
    /// Drops the last positions: each head loses the rows that it has there. A frontier inside a
    /// dropped chunk snaps back to the start of the chunk, and its rows that remain come back raw,
    /// as they decode; everything else that remains is untouched. Such a head needs one raw page,
    /// for which it takes the first page of its tail unless it has none or shares it.
    Trim {
        /// Sequences and the number of positions.
        parts: &'a [Part],
    },
}

/// The first rows of a raw or sink page become those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CopyRows {
    /// Page read.
    pub from: PageId,
    /// Page written.
    pub to: PageId,
    /// Rows.
    pub rows: u32,
}

/// The first rows of a packed page are decoded into a raw page, positions included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Restore {
    /// Packed page.
    pub from: PageId,
    /// Raw page.
    pub to: PageId,
    /// Rows.
    pub rows: u32,
    /// Place in [`LayerStep::scale_pages`]; 0 where there are no key scales.
    pub scale: u32,
}

/// Rows that follow each other in the incoming tensors are written into one page.
///
/// Incoming keys and values are `[rows, head_dim]` a layer, member after member, in a member head
/// after head, in a head token after token: `[B, H, N, D]` where all members add as many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Write {
    /// Page written.
    pub page: PageId,
    /// First row of the page that is written.
    pub slot: u32,
    /// Rows.
    pub rows: u32,
    /// First row of the incoming tensors.
    pub source: u32,
    /// Position of the first row; they follow each other.
    pub position: u32,
}

/// Kept rows of a prompt are gathered into the first rows of a raw page.
///
/// The row to be read for a kept position `p` is row `(p - sinks) % chunk` of page
/// `gather_pages[table + (p - sinks) / chunk]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Gather {
    /// Raw page written.
    pub to: PageId,
    /// Rows.
    pub rows: u32,
    /// First place in the layer's list of kept positions (head after head, sinks included).
    pub kept: u32,
    /// First place in [`LayerStep::gather_pages`] of the head's pages.
    pub table: u32,
}

/// A full raw page becomes a packed page, positions included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Encode {
    /// Raw page.
    pub from: PageId,
    /// Packed page.
    pub to: PageId,
    /// Place in [`LayerStep::scale_pages`]; 0 where there are no key scales.
    pub scale: u32,
}

/// The key scale of a head is fixed from raw pages, all full, and put into its sink page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FixScale {
    /// Sink page written.
    pub to: PageId,
    /// First place in [`LayerStep::fix_pages`] of the pages.
    pub first: u32,
    /// Pages.
    pub pages: u32,
}

/// The work of a step in one layer, to be done list by list in the order of the fields. Within a
/// list no page is written twice at the same rows, and none is read that the list writes. Lists are
/// sorted by the slabs of the page written, then of the page read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerStep {
    /// Sink pages that are copied before they are written.
    pub sink_copies: Vec<CopyRows>,
    /// Raw pages that are copied before they are written.
    pub raw_copies: Vec<CopyRows>,
    /// Packed pages that come back raw.
    pub restores: Vec<Restore>,
    /// Incoming rows that go to sink pages.
    pub sink_writes: Vec<Write>,
    /// Incoming rows that go to raw pages.
    pub raw_writes: Vec<Write>,
    /// Rows of an evicted prompt that stay.
    pub gathers: Vec<Gather>,
    /// Raw pages of the prompt that gathers read.
    pub gather_pages: Vec<PageId>,
    /// Key scales that are fixed.
    pub fixes: Vec<FixScale>,
    /// Raw pages that the fixes read.
    pub fix_pages: Vec<PageId>,
    /// Pages that are packed.
    pub encodes: Vec<Encode>,
    /// Sink pages whose key scales restores and encodes use: as they are before any of the work for
    /// restores, and after it for encodes; no step has both.
    pub scale_pages: Vec<PageId>,
}

/// A slab of a class and layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlabId {
    /// Class of its pages.
    pub class: PageClass,
    /// The layer, whose pages alone lie in it.
    pub layer: u32,
    /// Number within the class and layer; the numbers of dropped slabs come again.
    pub slab: u32,
}

/// What an operation needs of a pool; of rows that are beyond the whole budget the least that they
/// need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Pages that must be free, by class ([`PageClass::index`]); those that it gives back at its
    /// end are not counted against them.
    pub pages: [u64; 3],
    /// Bytes of the slabs that would have to be made.
    pub slab_bytes: u64,
    /// Bytes that the budget leaves for new slabs once all empty ones are dropped.
    pub available: u64,
}

impl Needs {
    /// Whether the operation would be planned now.
    pub const fn fits(&self) -> bool {
        self.slab_bytes <= self.available
    }

    pub(super) fn check(&self) -> Result<()> {
        let (needed, available) = (self.slab_bytes, self.available);
        if self.fits() { Ok(()) } else { Err(Error::OutOfBudget { needed, available }) }
    }
}

/// How the tables of one head change. Lists of pages are ranges of [`Changes::pages`].
#[derive(Clone, Debug)]
pub(super) struct HeadChange {
    pub(super) member: u32,
    pub(super) head: u32,
    pub(super) rows: u32,
    pub(super) prompt: u32,
    /// The sink page afterwards.
    pub(super) sink: PageId,
    /// Packed pages that stay.
    pub(super) packed_keep: u32,
    pub(super) packed_new: Range<u32>,
    /// Tail pages that stay, before `tail_front` leave.
    pub(super) tail_keep: u32,
    pub(super) tail_new: Range<u32>,
    /// Pages at the front of what stays and what is new that leave.
    pub(super) tail_front: u32,
}

/// How a sequence changes beside its tables.
#[derive(Clone, Debug)]
pub(super) struct SequenceChange {
    pub(super) sequence: SequenceId,
    pub(super) seen: u32,
    pub(super) origin: u32,
    /// Layers that become finished.
    pub(super) finished: Range<usize>,
    /// Kept rows of each head of those layers, if not all.
    pub(super) counts: Option<Vec<u32>>,
}

/// What a step does to the pool once it is committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) pages: Vec<PageId>,
    pub(super) heads: Vec<HeadChange>,
    pub(super) sequences: Vec<SequenceChange>,
    /// Pages taken, by layer of the pool and class.
    pub(super) taken: Vec<[Vec<PageId>; 3]>,
}

/// A planned operation: lists for the paths to carry out, and what changes in the pool when it is
/// committed.
///
/// Slabs are made before anything else and dropped ones are let go of; then the layers, in any
/// order. Pages that a step gives up are reused by later steps only, so steps must be carried out
/// in the order in which they were committed.
#[derive(Clone, Debug)]
pub struct Step {
    pub(super) revision: u64,
    pub(super) first_layer: usize,
    pub(super) layers: Vec<LayerStep>,
    pub(super) source_rows: u32,
    pub(super) opened: Vec<SlabId>,
    pub(super) dropped: Vec<SlabId>,
    pub(super) needs: Needs,
    pub(super) changes: Changes,
}

impl Step {
    /// The layers that have work, in order, with their numbers.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &LayerStep)> {
        self.layers.iter().enumerate().map(|(place, layer)| (self.first_layer + place, layer))
    }

    /// The work in one layer; `None` for a layer that the operation leaves alone.
    pub fn layer(&self, layer: usize) -> Option<&LayerStep> {
        self.layers.get(layer.checked_sub(self.first_layer)?)
    }

    /// Rows of the incoming keys and values of each layer; 0 where none come in.
    pub fn source_rows(&self) -> u32 {
        self.source_rows
    }

    /// Slabs to be made, of [`crate::layout::pool::PoolLayout::slab_bytes`] bytes.
    pub fn opened(&self) -> &[SlabId] {
        &self.opened
    }

    /// Slabs that no page of any sequence lies in and that make room for others; none of them is
    /// opened by the same step.
    pub fn dropped(&self) -> &[SlabId] {
        &self.dropped
    }

    /// Pages and slab bytes that the step takes.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }
}
