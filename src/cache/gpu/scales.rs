//! Key scales in sink pages: gathers them (`wgsl/cache/scales.wgsl`), and fixes them.

use super::lists::{Run, Words};
use super::pages::{List, Slab, words};
use super::slabs::Slabs;
use crate::cache::paged::{ScaleRow, scale_rows};
use crate::cache::pool::{LayerStep, Tables};
use crate::error::Result;
use crate::gpu::{Binding, Context, Groups, Kernel, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::nsnquant::gpu::{DeviceKeyScales, Part, fix, squares};
use crate::shape::{Dtype, check_count};

params! {
    /// Parameters of the gathering.
    pub struct ScalesParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First page of the slab.
        base: u32,
        /// Pages of the slab.
        pages: u32,
        /// Words of a page.
        page_words: u32,
        /// Where the scale starts in a page.
        offset: u32,
        /// Words of a scale.
        words: u32,
        /// Rows of the result.
        rows: u32,
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/scales",
    source: include_str!("../../../wgsl/cache/scales.wgsl"),
    bindings: &[Binding::Read("list"), Binding::Read("slab"), Binding::Write("result")],
    params: ScalesParams::LAYOUT,
};

/// The kernel of `wgsl/cache/scales.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// The one variant.
pub fn variants() -> Vec<Variant> {
    vec![Variant::default()]
}

/// Records the copies of the key scales of a list of [`ScaleRow`] from a slab of sink pages into `to`,
/// f16 `[rows, head_dim_k]`. Entries whose pages lie elsewhere are ignored, as are rows beyond the
/// result.
///
/// # Errors
/// [`crate::Error::Length`] for a list or slab that is too short; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    list: &List<'_>,
    from: &Slab<'_>,
    to: Slice<'_>,
    rows: usize,
) -> Result<()> {
    let scale_words = layout.scale_words();
    if list.count == 0 || scale_words == 0 {
        return Ok(());
    }
    list.check(2)?;
    from.check("slab", layout)?;
    words("scales", to.size, check_count("scales", &[rows, scale_words])? as u64)?;
    let class = from.class;
    let params = ScalesParams {
        first: list.first,
        count: list.count,
        base: from.base(layout),
        pages: layout.pages_per_slab(class),
        page_words: layout.words(class) as u32,
        offset: layout.scale_offset() as u32,
        words: scale_words as u32,
        rows: rows as u32,
    };
    let slices = [list.words, from.words, to];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(list.count.into()))
}

/// Key scales of some rows, gathered.
#[derive(Debug)]
pub(super) struct Gathered {
    buffer: wgpu::Buffer,
    rows: usize,
}

impl Gathered {
    pub(super) fn new(context: &Context, layout: &PoolLayout, rows: usize) -> Result<Option<Self>> {
        if rows == 0 || !layout.key_scale() {
            return Ok(None);
        }
        let size = 4 * check_count("scales", &[rows, layout.scale_words()])? as u64;
        Ok(Some(Self { buffer: context.create("key scales", size)?, rows }))
    }

    pub(super) fn slice(&self) -> Slice<'_> {
        Slice::all(&self.buffer)
    }

    pub(super) fn scales(&self) -> DeviceKeyScales<'_> {
        DeviceKeyScales { values: self.slice(), count: self.rows }
    }

    /// Records the gathering of parts of a list.
    pub(super) fn fill(
        &self,
        rec: &mut Recorder<'_>,
        layout: &PoolLayout,
        list: Slice<'_>,
        runs: &[Run],
        (slabs, layer): (&Slabs, usize),
    ) -> Result<()> {
        for run in runs {
            let list = List { words: list, first: run.first, count: run.count };
            let slab = slabs.bound(PageClass::Sink, layer, run.from)?;
            record(rec, layout, &list, &slab, self.slice(), self.rows)?;
        }
        Ok(())
    }
}

/// Which rows of a batch are under which key scale, on the device.
#[derive(Debug)]
pub(super) struct ScaleLists {
    words: wgpu::Buffer,
    runs: Vec<Run>,
    rows: usize,
}

impl ScaleLists {
    /// The scales of the rows of some tables; `None` where no row is under one.
    pub(super) fn new(
        context: &Context,
        layout: &PoolLayout,
        tables: &Tables,
    ) -> Result<Option<Self>> {
        let list = scale_rows(layout, tables);
        if list.is_empty() {
            return Ok(None);
        }
        let mut words = Words::default();
        let runs = words.push(&list, |entry| (layout.slab_of(PageClass::Sink, entry.page), 0))?;
        Ok(Some(Self { words: words.upload(context)?, runs, rows: tables.rows() }))
    }

    /// Records their gathering.
    pub(super) fn gather(
        &self,
        rec: &mut Recorder<'_>,
        layout: &PoolLayout,
        slabs: &Slabs,
        layer: usize,
    ) -> Result<Option<Gathered>> {
        let gathered = Gathered::new(rec.context(), layout, self.rows)?;
        if let Some(gathered) = &gathered {
            let list = Slice::all(&self.words);
            gathered.fill(rec, layout, list, &self.runs, (slabs, layer))?;
        }
        Ok(gathered)
    }
}

/// The scales that a step fixes in a layer and those that it uses.
#[derive(Debug, Default)]
pub(super) struct ScaleWork {
    squares: Vec<Run>,
    fixes: Vec<Run>,
    used: Vec<Run>,
    pages: usize,
    rows: usize,
}

/// What a step needs beside its lists while it is recorded.
#[derive(Debug)]
pub(super) struct Scratch {
    squares: Option<wgpu::Buffer>,
    pub(super) used: Option<Gathered>,
}

impl ScaleWork {
    pub(super) fn new(words: &mut Words, layout: &PoolLayout, step: &LayerStep) -> Result<Self> {
        let word = |class: PageClass, page: PageId| layout.word_of(class, page) as u32;
        let chunk = layout.chunk() as u32;
        let raw = |page: &PageId| layout.slab_of(PageClass::Raw, *page);
        let mut pages: Vec<(u32, [u32; 3])> = step
            .fix_pages
            .iter()
            .zip(0..)
            .map(|(page, row)| (raw(page), [word(PageClass::Raw, *page), chunk, row]))
            .collect();
        pages.sort_by_key(|(slab, _)| *slab);
        let mut squares = Vec::new();
        for part in pages.chunk_by(|a, b| a.0 == b.0) {
            let list: Vec<[u32; 3]> = part.iter().map(|(_, entry)| *entry).collect();
            squares.extend(words.push(&list, |_| (part[0].0, 0))?);
        }
        let sink = |page: PageId| layout.slab_of(PageClass::Sink, page);
        let mut fixes = Vec::new();
        for part in step.fixes.chunk_by(|a, b| sink(a.to) == sink(b.to)) {
            let list = part.iter().map(|fix| {
                let to = word(PageClass::Sink, fix.to) + layout.scale_offset() as u32;
                [fix.first, fix.pages, fix.pages * chunk, to]
            });
            fixes.extend(words.push(&list.collect::<Vec<_>>(), |_| (0, sink(part[0].to)))?);
        }
        let used =
            step.scale_pages.iter().zip(0..).map(|(page, row)| ScaleRow { page: *page, row });
        let mut used: Vec<ScaleRow> = used.collect();
        used.sort_by_key(|entry| sink(entry.page));
        let used = words.push(&used, |entry| (sink(entry.page), 0))?;
        let (pages, rows) = (step.fix_pages.len(), step.scale_pages.len());
        Ok(Self { squares, fixes, used, pages, rows })
    }

    pub(super) fn scratch(&self, context: &Context, layout: &PoolLayout) -> Result<Scratch> {
        let squares = match self.pages {
            0 => None,
            pages => {
                let words = check_count("squares", &[pages, layout.head_dims()[0]])?;
                Some(context.create("squares", 4 * words as u64)?)
            }
        };
        Ok(Scratch { squares, used: Gathered::new(context, layout, self.rows)? })
    }

    /// Records the fixing.
    pub(super) fn fix(
        &self,
        rec: &mut Recorder<'_>,
        layout: &PoolLayout,
        raw: Dtype,
        list: Slice<'_>,
        scratch: &Scratch,
        (slabs, layer): (&Slabs, usize),
    ) -> Result<()> {
        let Some(sums) = scratch.squares.as_ref().map(Slice::all) else { return Ok(()) };
        let [dim, _] = layout.head_dims();
        let part = |run: &Run| Part { words: list, first: run.first, count: run.count };
        for run in &self.squares {
            let slab = slabs.bound(PageClass::Raw, layer, run.from)?;
            squares(rec, dim, slab.words, raw, part(run), sums)?;
        }
        for run in &self.fixes {
            let slab = slabs.bound(PageClass::Sink, layer, run.to)?;
            fix(rec, dim, sums, part(run), slab.words)?;
        }
        Ok(())
    }

    /// Records the gathering of those that the step uses.
    pub(super) fn gather(
        &self,
        rec: &mut Recorder<'_>,
        layout: &PoolLayout,
        list: Slice<'_>,
        scratch: &Scratch,
        slabs: (&Slabs, usize),
    ) -> Result<()> {
        match &scratch.used {
            Some(used) => used.fill(rec, layout, list, &self.used, slabs),
            None => Ok(()),
        }
    }
}
