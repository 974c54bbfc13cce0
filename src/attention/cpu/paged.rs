//! Attention over page tables.

use half::f16;

use super::{Attended, Queries, answer, packed, paged_packed, paged_raw, rotate};
use crate::attention::config::PagedAttend;
use crate::attention::plan::{Plan, QueryShape, Settings};
use crate::attention::tables::{UNIT_PAGES, check};
use crate::attention::view::{check_codecs, length, same};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::layout::tables::Tables;
use crate::nsnquant::{Codec, check_factors};
use crate::shape::{Dtype, Elements};

/// Rows of one layer of a batch, in the pages of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PagedView<'a> {
    /// How pages lie in slabs.
    pub layout: &'a PoolLayout,
    /// Type of raw elements, f16 or bf16.
    pub raw: Dtype,
    /// The codecs of keys and values; needed where there are packed pages.
    pub codecs: Option<[&'a Codec; 2]>,
    /// Which pages the rows lie in.
    pub tables: &'a Tables,
    /// The words of the layer's slabs by class ([`PageClass::index`]) and by number.
    pub slabs: [&'a [Option<Vec<u32>>]; 3],
    /// The key scale that the packed pages of each row are under, `[rows, head_dim_k]`, if any; that
    /// of a row without such pages is of no account.
    pub key_scales: Option<&'a [f16]>,
}

impl<'a> PagedView<'a> {
    /// The pages of a class in the order of the tables.
    pub(super) fn pages(&self, class: PageClass) -> &'a [PageId] {
        match class {
            PageClass::Sink => &self.tables.sinks,
            PageClass::Packed => &self.tables.packed,
            PageClass::Raw => &self.tables.tail,
        }
    }

    /// The words of a page; `None` outside the slabs.
    fn find(&self, class: PageClass, page: PageId) -> Option<&'a [u32]> {
        let slab = self.layout.slab_of(class, page) as usize;
        let slab = self.slabs[class.index()].get(slab)?.as_ref()?;
        let first = self.layout.word_of(class, page);
        slab.get(first..first + self.layout.words(class))
    }

    /// The words of a page of checked tables.
    pub(super) fn page(&self, class: PageClass, page: PageId) -> &'a [u32] {
        self.find(class, page).unwrap_or(&[])
    }

    /// The keys (side 0) or values of the first rows of a raw page.
    pub(super) fn elements(
        &self,
        class: PageClass,
        page: &'a [u32],
        side: usize,
        rows: usize,
    ) -> Elements<'a> {
        let first = if side == 0 { 0 } else { self.layout.values_offset(class) };
        let words = &page[first..first + rows * self.layout.row_words(side)];
        match self.raw {
            Dtype::Bf16 => Elements::Bf16(bytemuck::cast_slice(words)),
            _ => Elements::F16(bytemuck::cast_slice(words)),
        }
    }

    fn check(&self) -> Result<()> {
        check(self.tables, self.layout)?;
        if self.raw == Dtype::F32 {
            let (got, expected) = (self.raw.name(), Dtype::F16.name());
            return Err(Error::Dtype { argument: "raw", got, expected });
        }
        if !self.tables.packed.is_empty() {
            let [keys, values] = self.codecs.ok_or(Error::Empty { argument: "codecs" })?;
            let [dim_k, dim_v] = self.layout.head_dims();
            check_codecs(keys, values, dim_k, dim_v)?;
            if let Some(scales) = self.key_scales {
                length("key_scales", scales.len(), self.tables.rows() * dim_k)?;
                check_factors(scales)?;
            }
            let expected = self.layout.packed();
            for (side, codec) in [keys, values].into_iter().enumerate() {
                let argument = ["bits of the key codec", "bits of the value codec"][side];
                let (got, chunk) = (codec.layout().bits().get(), codec.layout().chunk());
                let expected = expected.map_or(got, |layouts| layouts[side].bits().get());
                same(argument, got, expected, "the layout")?;
                same("chunk", chunk, self.layout.chunk(), "the layout")?;
            }
        }
        let units = PageClass::ALL.map(|class| (class, self.pages(class)));
        for (class, pages) in units {
            let used = |row: usize| class != PageClass::Sink || self.tables.sink_rows[row] > 0;
            let lost = |(index, page): &(usize, &PageId)| {
                used(*index) && (page.is_none() || self.find(class, **page).is_none())
            };
            if let Some((index, page)) = pages.iter().enumerate().find(lost) {
                let (got, expected) = (u64::from(page.get()), "a page of a slab");
                return Err(Error::Offsets { argument: "page table", index, got, expected });
            }
        }
        Ok(())
    }
}

/// Attention of queries `[members, heads, tokens, head_dim]` over the rows of a batch. The answers of
/// a member are the same bits whatever else is in the batch and wherever its pages lie.
///
/// Rows lie by ascending positions in their sink page, packed pages and tail pages.
///
/// # Errors
/// [`Error::QueryHeads`], [`Error::Mismatch`], [`Error::Length`], [`Error::Empty`],
/// [`Error::Dtype`] where parts do not belong together; [`Error::Offsets`] for counts beyond their
/// pages and pages outside the slabs; [`Error::Parameter`] for a bad scale, cap or window;
/// [`Error::OutOfRange`] for more query tokens than a member has seen.
pub fn attend_paged(
    view: &PagedView<'_>,
    queries: &Queries<'_>,
    config: &PagedAttend<'_>,
) -> Result<Attended> {
    view.check()?;
    let Queries { data, batch, heads, tokens, head_dim } = *queries;
    same("batch", batch, view.tables.next.len(), "the page tables")?;
    let settings = Settings::paged(config, &view.tables.next, tokens)?;
    let shape = QueryShape { batch, heads, tokens, head_dim };
    let rows = view.tables.rows();
    let plan = Plan::new(rows, view.layout.head_dims(), shape, data.len(), settings)?;
    let codecs = view.codecs.filter(|_| !view.tables.packed.is_empty());
    let prepared = rotate::prepare(&plan, data, codecs.map(|[keys, _]| keys), view.key_scales);
    let books = codecs.map(|[keys, values]| packed::Codecs::new(keys, values));
    let units = view.tables.units(UNIT_PAGES)?;
    let of_row = |class: PageClass, row: usize| {
        let units = &units.units[class.index()];
        let [first, end] =
            [row, row + 1].map(|row| units.partition_point(|unit| (unit.row as usize) < row));
        &units[first..end]
    };
    Ok(answer(&plan, &prepared, codecs.map(|[_, values]| values), |block| {
        let units = |class| of_row(class, block.row);
        let raw = |class| paged_raw::partials(&plan, view, class, units(class), block);
        let mut partials = raw(PageClass::Sink);
        if let Some(books) = &books {
            let units = units(PageClass::Packed);
            partials.extend(paged_packed::partials(&plan, view, books, units, block));
        }
        partials.extend(raw(PageClass::Raw));
        partials
    }))
}
