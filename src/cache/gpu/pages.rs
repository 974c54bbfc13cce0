//! Slabs and lists of pages as kernels bind them.

use crate::error::{Error, Result};
use crate::gpu::Slice;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::shape::Dtype;

/// A slab of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Slab<'a> {
    /// What its pages hold.
    pub class: PageClass,
    /// Its number within the class and layer.
    pub number: u32,
    /// Its words, of [`PoolLayout::slab_bytes`] bytes.
    pub words: Slice<'a>,
}

/// A part of a list of page entries in device memory.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// The whole list.
    pub words: Slice<'a>,
    /// First word of the part.
    pub first: u32,
    /// Entries of the part.
    pub count: u32,
}

impl Slab<'_> {
    /// Number of its first page.
    pub(super) fn base(&self, layout: &PoolLayout) -> u32 {
        layout.page(self.class, self.number, 0).get()
    }

    pub(super) fn check(&self, argument: &'static str, layout: &PoolLayout) -> Result<()> {
        words(argument, self.words.size, layout.slab_bytes(self.class) / 4)
    }

    /// Whether two slabs are one.
    pub(super) fn same(&self, other: &Slab<'_>) -> bool {
        self.words.buffer == other.words.buffer && self.words.offset == other.words.offset
    }
}

impl List<'_> {
    /// Checks the length of a list of entries of so many words.
    pub(super) fn check(&self, entry_words: u64) -> Result<()> {
        let end = u64::from(self.first) + u64::from(self.count) * entry_words;
        words("list", self.words.size, end)
    }
}

/// Refuses a slice that holds fewer than `expected` elements of a type.
pub(super) fn holds(
    argument: &'static str,
    bytes: u64,
    dtype: Dtype,
    expected: usize,
) -> Result<()> {
    let got = usize::try_from(bytes / dtype.bytes() as u64).unwrap_or(usize::MAX);
    if got < expected { Err(Error::Length { argument, got, expected }) } else { Ok(()) }
}

/// Refuses a slice that is shorter than `expected` words.
pub(super) fn words(argument: &'static str, bytes: u64, expected: u64) -> Result<()> {
    if bytes / 4 < expected {
        let (got, expected) = ((bytes / 4) as usize, expected as usize);
        return Err(Error::Length { argument, got, expected });
    }
    Ok(())
}
