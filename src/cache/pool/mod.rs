//! The account of a paged cache of many sequences: which rows lie in which page, and what each
//! operation does about it. Pure arithmetic, shared by both paths.
//!
//! A page holds rows of one KV head of one layer and belongs to one sequence or, after a fork, to
//! several. The rows of a head lie in a sink page, in packed pages of one chunk each, and in a tail
//! of raw pages that starts at the frontier ([`PageClass`](crate::layout::pool::PageClass)). Heads
//! have their own lengths, since head budgets differ.
//!
//! An operation is planned ([`Pool::plan`]), carried out by one of the paths, which follows the
//! lists of the [`Step`], and booked ([`Pool::commit`]). A step that fails on the way is not booked,
//! and all sequences hold the rows that they held, except that a trim may have overwritten rows
//! that it was to drop.
//!
//! What it costs: a table entry is 4 bytes a page of one head. 1,000 sequences of 131,072 tokens in
//! pages of 64 with 8 KV heads have 16.4 million pages a layer, whose tables take 66 MB (0.07% of
//! the 88 GB that the pages take at 2 bits and 128 channels); over 80 layers 5.2 GB on the host,
//! uploaded one layer at a time and only where a table has changed ([`Pool::table_revision`]). The
//! lists of a decode step of that batch are 20 bytes a head: 160 KB a layer.
//!
//! Slabs belong to one layer, so that attention in a layer binds that layer's slabs alone. Every
//! layer chooses its pages in the same way: layers that hold the same rows have equal tables and
//! lists, which then need to be uploaded once.

mod config;
mod figures;
mod pages;
mod plan;
#[allow(clippy::module_inception, reason = "the pool's own file")]
mod pool;
mod sequence;
mod snapshot;
mod step;
mod tables;

pub use crate::layout::tables::{Tables, Unit, Units};
pub use config::{MAX_RECENT, PoolConfig};
pub use figures::{Parts, PoolFigures, SequenceFigures};
pub use pool::Pool;
pub use sequence::SequenceId;
pub use snapshot::{Eviction, Load, SavedHead, SavedSequence, Snapshot};
pub use step::{
    CopyRows, Encode, FixScale, Gather, Keep, LayerStep, Needs, Operation, Part, Restore, SlabId,
    Step, Write,
};
