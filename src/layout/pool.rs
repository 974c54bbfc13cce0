//! How the pages of a pool lie in memory.
//!
//! A page holds rows of one KV head: their keys, then their values, then their positions (one word
//! a row), and every part starts on a multiple of four words. In a packed page keys and values are
//! each a page of [`PageLayout`]; in a raw page they are `[rows, head_dim]` of 16-bit elements.

use bytemuck::{Pod, Zeroable};

use super::{Bits, MAX_CHUNK, MIN_CHUNK, PageLayout, Profile, Scheme};
use crate::error::{Error, Result};
use crate::shape::check_head_dim;

/// Most sinks of a head: they share one page.
pub const MAX_SINKS: usize = 1024;
/// Most pages of a slab, which leaves 12 bits of a [`PageId`] for the slab.
pub const MAX_SLAB_PAGES: usize = 1 << 20;
/// Largest slab in bytes: shaders count its words in 32 bits.
pub const MAX_SLAB_BYTES: u64 = 1 << 33;

/// What a page holds. Each class has slabs of its own, in which all pages have one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageClass {
    /// The first rows of a head, raw for good.
    Sink,
    /// One packed chunk.
    Packed,
    /// Rows as they came: the tail, and where nothing is packed all rows after the sinks.
    Raw,
}

impl PageClass {
    /// Every class, in the order in which attention reads a row.
    pub const ALL: [Self; 3] = [Self::Sink, Self::Packed, Self::Raw];

    /// Place in a list by class: 0 for sinks, 1 for packed pages, 2 for raw ones.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A page of a class: `slab << shift | index`, with [`PoolLayout::shift`] of the class. Kernels take
/// it apart the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct PageId(u32);

impl PageId {
    /// No page.
    pub const NONE: Self = Self(u32::MAX);

    /// The page of this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The page's number in its pool and class; `u32::MAX` for none.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether this is no page.
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }
}

/// Sizes of the pages and slabs of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    head_dims: [usize; 2],
    chunk: usize,
    sinks: usize,
    packed: Option<[PageLayout; 2]>,
    key_scale: bool,
    pages_per_slab: [u32; 3],
}

const fn aligned(words: usize) -> usize {
    words.next_multiple_of(4)
}

impl PoolLayout {
    /// As [`Self::with`], packed at the two rates of `bits` (keys, values) by [`Profile::Compat`].
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn new(
        head_dim_k: usize,
        head_dim_v: usize,
        bits: Option<(Bits, Bits)>,
        chunk: usize,
        sinks: usize,
        slab_bytes: u64,
    ) -> Result<Self> {
        let schemes = bits.map(|(keys, values)| [keys, values].map(|b| Profile::Compat.scheme(b)));
        Self::with(head_dim_k, head_dim_v, schemes, false, chunk, sinks, slab_bytes)
    }

    /// The layout of pages of `chunk` rows of 16-bit keys of `head_dim_k` and values of
    /// `head_dim_v` channels, packed by two schemes (keys, values) or not at all, in slabs of at most
    /// `slab_bytes` bytes. With `key_scale` packed keys are under a scale that lies in the sink page
    /// of their head.
    ///
    /// A slab of sinks has as many pages as one of raw rows, and so takes less.
    ///
    /// # Errors
    /// [`Error::HeadDim`]; [`Error::OutOfRange`] for `chunk`, `sinks`, or a slab that holds no page
    /// or whose words shaders cannot count.
    pub fn with(
        head_dim_k: usize,
        head_dim_v: usize,
        schemes: Option<[Scheme; 2]>,
        key_scale: bool,
        chunk: usize,
        sinks: usize,
        slab_bytes: u64,
    ) -> Result<Self> {
        check_head_dim("head_dim_k", head_dim_k)?;
        check_head_dim("head_dim_v", head_dim_v)?;
        let within = |argument, got: u64, min: u64, max: u64| {
            let fault = Error::OutOfRange { argument, got, min, max };
            if (min..=max).contains(&got) { Ok(()) } else { Err(fault) }
        };
        within("chunk", chunk as u64, MIN_CHUNK as u64, MAX_CHUNK as u64)?;
        within("sinks", sinks as u64, 0, MAX_SINKS as u64)?;
        let packed = match schemes {
            Some([keys, values]) => Some([
                PageLayout::with("head_dim_k", head_dim_k, keys, chunk)?,
                PageLayout::with("head_dim_v", head_dim_v, values, chunk)?,
            ]),
            None => None,
        };
        let head_dims = [head_dim_k, head_dim_v];
        let key_scale = key_scale && packed.is_some();
        let pages_per_slab = [0; 3];
        let mut layout = Self { head_dims, chunk, sinks, packed, key_scale, pages_per_slab };
        let largest = PageClass::ALL.map(|class| layout.bytes(class)).into_iter().max();
        within("slab_bytes", slab_bytes, largest.unwrap_or(0), MAX_SLAB_BYTES)?;
        let fit = |bytes: u64| slab_bytes.checked_div(bytes).unwrap_or(0);
        let pages = |class| fit(layout.bytes(class)).min(MAX_SLAB_PAGES as u64) as u32;
        let raw = pages(PageClass::Raw);
        layout.pages_per_slab = [raw.min(pages(PageClass::Sink)), pages(PageClass::Packed), raw];
        Ok(layout)
    }

    /// Channels of a key and of a value.
    pub const fn head_dims(&self) -> [usize; 2] {
        self.head_dims
    }

    /// Rows of a packed or raw page.
    pub const fn chunk(&self) -> usize {
        self.chunk
    }

    /// Rows of a sink page.
    pub const fn sinks(&self) -> usize {
        self.sinks
    }

    /// Layouts of packed keys and values, if rows are packed.
    pub const fn packed(&self) -> Option<&[PageLayout; 2]> {
        self.packed.as_ref()
    }

    /// Rows that a page of a class can hold; 0 for a class that this pool does not use.
    pub const fn rows(&self, class: PageClass) -> usize {
        match class {
            PageClass::Sink => self.sinks,
            PageClass::Packed if self.packed.is_none() => 0,
            PageClass::Packed | PageClass::Raw => self.chunk,
        }
    }

    /// Words of a raw key (side 0) or value (side 1).
    pub const fn row_words(&self, side: usize) -> usize {
        self.head_dims[side] / 2
    }

    /// Words of the keys (side 0) or values (side 1) of a page, padding not counted.
    pub const fn side_words(&self, class: PageClass, side: usize) -> usize {
        match (class, &self.packed) {
            (PageClass::Packed, Some(packed)) => packed[side].words(),
            _ => self.rows(class) * self.row_words(side),
        }
    }

    /// First word of the values of a page; keys start at 0.
    pub const fn values_offset(&self, class: PageClass) -> usize {
        aligned(self.side_words(class, 0))
    }

    /// First word of the positions of a page.
    pub const fn positions_offset(&self, class: PageClass) -> usize {
        self.values_offset(class) + aligned(self.side_words(class, 1))
    }

    /// Whether packed keys are under key scales, which lie in sink pages.
    pub const fn key_scale(&self) -> bool {
        self.key_scale
    }

    /// First word of the key scale of a sink page, f16 `[head_dim_k]`.
    pub const fn scale_offset(&self) -> usize {
        self.positions_offset(PageClass::Sink) + aligned(self.sinks)
    }

    /// Words of the key scale of a sink page; 0 without one.
    pub const fn scale_words(&self) -> usize {
        if self.key_scale { self.head_dims[0] / 2 } else { 0 }
    }

    /// Whether a head of so many rows, of which so many pages are packed, has a sink page.
    pub const fn has_sink(&self, rows: u32, packed: usize) -> bool {
        self.sinks > 0 && rows > 0 || self.key_scale && packed > 0
    }

    /// Words of a page.
    pub const fn words(&self, class: PageClass) -> usize {
        let rows = self.positions_offset(class) + aligned(self.rows(class));
        match class {
            PageClass::Sink => rows + aligned(self.scale_words()),
            PageClass::Packed | PageClass::Raw => rows,
        }
    }

    /// Bytes of a page, padding counted.
    pub const fn bytes(&self, class: PageClass) -> u64 {
        4 * self.words(class) as u64
    }

    /// Pages of a slab; 0 for a class that this pool does not use.
    pub const fn pages_per_slab(&self, class: PageClass) -> u32 {
        self.pages_per_slab[class.index()]
    }

    /// Bytes of a slab.
    pub const fn slab_bytes(&self, class: PageClass) -> u64 {
        self.bytes(class) * self.pages_per_slab(class) as u64
    }

    /// Bits of a [`PageId`] that number the page within its slab.
    pub const fn shift(&self, class: PageClass) -> u32 {
        match self.pages_per_slab(class) {
            0 | 1 => 0,
            pages => 32 - (pages - 1).leading_zeros(),
        }
    }

    /// Slabs that the pages of a class can be numbered in; the last number stays for
    /// [`PageId::NONE`].
    pub const fn max_slabs(&self, class: PageClass) -> u32 {
        u32::MAX >> self.shift(class)
    }

    /// The page at `index` of slab `slab`.
    pub const fn page(&self, class: PageClass, slab: u32, index: u32) -> PageId {
        PageId(slab << self.shift(class) | index)
    }

    /// Slab of a page.
    pub const fn slab_of(&self, class: PageClass, page: PageId) -> u32 {
        page.0 >> self.shift(class)
    }

    /// Place of a page within its slab.
    pub const fn index_of(&self, class: PageClass, page: PageId) -> u32 {
        page.0 & ((1u32 << self.shift(class)) - 1)
    }

    /// First word of a page within its slab.
    pub const fn word_of(&self, class: PageClass, page: PageId) -> usize {
        self.index_of(class, page) as usize * self.words(class)
    }
}
