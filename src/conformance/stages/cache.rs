//! Rows and pages of a cache: moved bit for bit, packed and unpacked within rounding.

use half::f16;

use super::nsnquant::{book, judge_page, rules};
use crate::cache::cpu::{self, keep::keep as keep_on_cpu};
use crate::cache::gpu::keep::Kept;
use crate::cache::gpu::restore::Dense;
use crate::cache::gpu::{self, List, Slab};
use crate::cache::plan::Move;
use crate::cache::pool::{CopyRows, Encode, Gather, Restore, Write};
use crate::cache::{FILL_ROWS, FetchRows, ScaleRow};
use crate::conformance::draw::{DTYPES, Random, elements};
use crate::conformance::run::{Job, Run};
use crate::error::Result;
use crate::gpu::{Recorder, Slice};
use crate::judge::widen;
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::layout::{Bits, Profile, Scheme};
use crate::nsnquant::gpu::DeviceCodec;
use crate::nsnquant::{Codebook, Codec};
use crate::shape::{Dtype, Elements};

const RAW: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// Slabs of one class, on the host and on the device. Number 1 is missing.
struct Both {
    class: PageClass,
    host: Vec<Option<Vec<u32>>>,
    device: Vec<Option<wgpu::Buffer>>,
}

impl Both {
    fn new(
        run: &mut Run<'_>,
        layout: &PoolLayout,
        class: PageClass,
        word: &mut dyn FnMut(&mut Random) -> u32,
    ) -> Result<Self> {
        let words = (layout.slab_bytes(class) / 4) as usize;
        let mut slab = |_| (0..words).map(|_| word(&mut run.random)).collect::<Vec<_>>();
        let host = (0..4).map(|number| (number != 1).then(|| slab(number))).collect();
        let mut both = Self { class, host, device: Vec::new() };
        both.refresh(run)?;
        Ok(both)
    }

    /// Slabs of any words.
    fn any(run: &mut Run<'_>, layout: &PoolLayout, class: PageClass) -> Result<Self> {
        Self::new(run, layout, class, &mut |random| random.word())
    }

    /// Uploads what the host holds.
    fn refresh(&mut self, run: &Run<'_>) -> Result<()> {
        let upload = |words: &Option<Vec<u32>>| words.as_ref().map(|w| run.upload(w)).transpose();
        self.device = self.host.iter().map(upload).collect::<Result<_>>()?;
        Ok(())
    }

    fn slabs(&self) -> Vec<Slab<'_>> {
        let held =
            (0..).zip(&self.device).filter_map(|(number, slab)| Some((number, slab.as_ref()?)));
        held.map(|(number, buffer)| Slab { class: self.class, number, words: Slice::all(buffer) })
            .collect()
    }

    /// What the device holds.
    async fn download(&self, run: &Run<'_>) -> Result<Vec<Option<Vec<u32>>>> {
        let mut all = Vec::new();
        for (host, device) in self.host.iter().zip(&self.device) {
            all.push(match (host, device) {
                (Some(host), Some(device)) => Some(run.read(device, host.len()).await?),
                _ => None,
            });
        }
        Ok(all)
    }

    async fn check(&self, run: &mut Run<'_>) -> Result<()> {
        let device = self.download(run).await?;
        for (number, (host, device)) in self.host.iter().zip(&device).enumerate() {
            if let (Some(host), Some(device)) = (host, device) {
                run.checks.equal(&format!("word of slab {number}"), device, host);
            }
        }
        Ok(())
    }

    /// All pages that there are.
    fn pages(&self, layout: &PoolLayout) -> Vec<PageId> {
        let count = layout.pages_per_slab(self.class);
        let of = |number| (0..count).map(move |index| (number, index));
        let pages = [0, 2, 3].into_iter().flat_map(of);
        pages.map(|(slab, index)| layout.page(self.class, slab, index)).collect()
    }

    /// Pages that there are not: in a missing slab, beyond all slabs, none, and beyond a slab where
    /// numbers have room for it.
    fn missing(&self, layout: &PoolLayout) -> Vec<PageId> {
        let page = |slab, index| layout.page(self.class, slab, index);
        let mut missing = vec![page(1, 0), page(9, 0), PageId::NONE];
        let beyond = layout.pages_per_slab(self.class);
        if !beyond.is_power_of_two() {
            missing.extend([page(0, beyond), page(3, beyond)]);
        }
        missing
    }

    /// A page among slabs.
    fn page<'a>(
        &self,
        slabs: &'a [Option<Vec<u32>>],
        layout: &PoolLayout,
        page: PageId,
    ) -> &'a [u32] {
        let slab = slabs.get(layout.slab_of(self.class, page) as usize);
        let words = slab.and_then(Option::as_ref).map_or(&[][..], Vec::as_slice);
        let first = layout.word_of(self.class, page);
        words.get(first..first + layout.words(self.class)).unwrap_or(&[])
    }
}

/// Slabs of three or so raw pages.
fn layout(
    dims: [usize; 2],
    schemes: [Scheme; 2],
    chunk: usize,
    sinks: usize,
) -> Result<PoolLayout> {
    let new = |slab| PoolLayout::with(dims[0], dims[1], Some(schemes), false, chunk, sinks, slab);
    let raw = new(1 << 26)?.bytes(PageClass::Raw);
    let layout = new(3 * raw)?;
    let odd = |class| !layout.pages_per_slab(class).is_power_of_two();
    if odd(PageClass::Raw) && odd(PageClass::Packed) { Ok(layout) } else { new(3 * raw + raw / 2) }
}

/// A layout as cases draw it.
fn drawn(run: &mut Run<'_>, most_sinks: usize) -> Result<PoolLayout> {
    const DIMS: [usize; 5] = [16, 64, 80, 112, 128];
    let dims = [0; 2].map(|_| run.random.pick(&DIMS));
    let bits = [0; 2].map(|_| run.random.pick(&[Bits::One, Bits::Two]));
    let (chunk, sinks) = (run.random.pick(&[4usize, 5, 16]), run.random.between(0, most_sinks));
    layout(dims, bits.map(|bits| Profile::Compat.scheme(bits)), chunk, sinks)
}

/// A layout as cases draw it; of the default profile in covering cases from `first` on.
fn drawn_packed(run: &mut Run<'_>, first: usize) -> Result<PoolLayout> {
    let drawn = drawn(run, 4)?;
    if run.number().is_none_or(|number| number < first) {
        return Ok(drawn);
    }
    let schemes = Profile::Tuned.schemes(Bits::Three, Bits::Two, None);
    layout(drawn.head_dims(), schemes, drawn.chunk(), drawn.sinks())
}

/// Codecs of both sides, on the host and on the device.
fn codecs(run: &Run<'_>, layout: &PoolLayout) -> Result<([Codec; 2], [DeviceCodec; 2])> {
    let Some([keys, values]) = layout.packed() else {
        return Err(crate::Error::Empty { argument: "packed pages" });
    };
    let host = [Codec::new(*keys, Codebook::builtin())?, Codec::new(*values, Codebook::builtin())?];
    let device = |side: usize| DeviceCodec::new(run.context, host[side].clone());
    let device = [device(0)?, device(1)?];
    Ok((host, device))
}

/// Records with a list of entries in device memory that starts behind other words.
fn with_list<T: bytemuck::Pod>(
    run: &Run<'_>,
    entries: &[T],
    record: impl FnOnce(&mut Recorder<'_>, &List<'_>) -> Result<()>,
) -> Result<()> {
    let mut words = vec![0xdead_beefu32; 3];
    words.extend_from_slice(bytemuck::cast_slice(entries));
    let buffer = run.upload(&words)?;
    let list = List { words: Slice::all(&buffer), first: 3, count: entries.len() as u32 };
    run.record(|rec| record(rec, &list))
}

pub(super) fn rows<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (from_dtype, to_dtype) = (run.cover(&DTYPES), run.cover(&DTYPES));
        let tokens = run.count(1, 40);
        let [before, after, first, more] = [0; 4].map(|_| run.random.below(9));
        let plan = Move {
            rows: run.count(1, 4),
            head_dim: run.random.pick(&[8usize, 64, 80, 128]),
            tokens,
            from_tokens: before + tokens + after,
            from_first: before,
            from_dtype,
            to_tokens: first + tokens + more,
            to_first: first,
            to_dtype,
        };
        let count = plan.rows * plan.from_tokens * plan.head_dim * from_dtype.bytes() / 4;
        let source = run.random.odd_words(count);
        let mut host = run.random.odd_words(plan.rows * plan.to_tokens * plan.to_words());
        let (device, input) = (run.upload(&host)?, run.upload(&source)?);
        cpu::rows::copy(&plan, elements(&source, from_dtype), &mut host)?;
        run.record(|rec| gpu::rows::record(rec, &plan, Slice::all(&input), Slice::all(&device)))?;
        let got: Vec<u32> = run.read(&device, host.len()).await?;
        run.checks.equal("word", &got, &host);
        Ok(())
    })
}

pub(super) fn write<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        const ROWS: u32 = 70;
        let (from, raw) = (run.cover(&DTYPES), run.cover(&RAW));
        let layout = drawn(run, 5)?;
        let sinks = layout.sinks() > 0 && run.random.odds(3);
        let class = if sinks { PageClass::Sink } else { PageClass::Raw };
        let mut both = Both::any(run, &layout, class)?;
        let cap = layout.rows(class);
        let mut list = Vec::new();
        for (index, page) in both.pages(&layout).into_iter().enumerate() {
            let random = &mut run.random;
            let rows = [1, cap, random.below(cap + 3), 0][index % 4] as u32;
            let (slot, source) = (random.below(cap) as u32, random.below(ROWS as usize + 3) as u32);
            list.push(Write { page, slot, rows, source, position: random.word() });
        }
        for page in both.missing(&layout) {
            list.push(Write { page, slot: 0, rows: cap as u32, source: 0, position: 7 });
        }
        // Tensors of ordinary, huge, tiny and non-finite elements.
        let data = layout
            .head_dims()
            .map(|dim| run.random.odd_words(ROWS as usize * dim * from.bytes() / 4));
        let buffers = [run.upload(&data[0])?, run.upload(&data[1])?];
        let [keys, values] = buffers.each_ref().map(Slice::all);
        let incoming = gpu::IncomingRows { keys, values, dtype: from };
        with_list(run, &list, |rec, list| {
            both.slabs()
                .iter()
                .try_for_each(|to| gpu::write::record(rec, &layout, list, to, raw, ROWS, &incoming))
        })?;
        let [keys, values] = data.each_ref().map(|words| elements(words, from));
        let rows = cpu::IncomingRows { keys, values };
        cpu::write::write(&layout, class, &list, raw, &rows, &mut both.host);
        both.check(run).await
    })
}

pub(super) fn copy<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let layout = drawn(run, 7)?;
        let sinks = layout.sinks() > 0 && run.random.odds(3);
        let class = if sinks { PageClass::Sink } else { PageClass::Raw };
        let mut both = Both::any(run, &layout, class)?;
        let pages = both.pages(&layout);
        // The second half is written; the others, and pages that there are not, are read.
        let (read, written) = pages.split_at(pages.len() / 2);
        let cap = layout.rows(class);
        let mut list: Vec<CopyRows> = written
            .iter()
            .zip(read.iter().cycle())
            .map(|(&to, &from)| {
                let rows = run.random.between(1, cap + 2) as u32;
                CopyRows { from, to, rows }
            })
            .collect();
        for missing in both.missing(&layout) {
            list.push(CopyRows { from: read[0], to: missing, rows: 2 });
            list.push(CopyRows { from: missing, to: written[0], rows: 2 });
        }
        with_list(run, &list, |rec, list| {
            for from in both.slabs() {
                for to in both.slabs() {
                    gpu::copy::record(rec, &layout, list, &from, &to)?;
                }
            }
            Ok(())
        })?;
        cpu::copy::copy(&layout, class, &list, &mut both.host);
        both.check(run).await
    })
}

pub(super) fn keep<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let layout = drawn(run, 5)?;
        let chunk = layout.chunk();
        let mut both = Both::any(run, &layout, PageClass::Raw)?;
        let pages = both.pages(&layout);
        // The prompt of two heads lies in two pages each, in several slabs; the rest is written.
        let tokens = (layout.sinks() + 2 * chunk) as u32 - 1;
        let table: Vec<PageId> = vec![pages[0], pages[7], pages[8], pages[1]];
        let missing = both.missing(&layout);
        let (mut kept, mut list) = (Vec::new(), Vec::new());
        for (index, &to) in pages[2..7].iter().chain(&missing).enumerate() {
            let (first, rows) = (kept.len() as u32, chunk as u32);
            kept.extend((0..chunk).map(|_| run.random.below(tokens as usize) as u32));
            list.push(Gather { to, rows, kept: first, table: 2 * (index as u32 % 2) });
        }
        // Positions that are no rows of the prompt, and lists that are not there.
        kept[1] = u32::MAX;
        kept[chunk] = tokens;
        list[1].table = 3;
        list[2].table = u32::MAX;
        list[3].kept = kept.len() as u32 - 1;
        list[4].rows = 1000;
        let mut words: Vec<u32> = bytemuck::cast_slice(&list).to_vec();
        let first = words.len() as u32;
        words.extend_from_slice(bytemuck::cast_slice(&table));
        let (words, positions) = (run.upload(&words)?, run.upload(&kept)?);
        let part = List { words: Slice::all(&words), first: 0, count: list.len() as u32 };
        let of = Kept {
            positions: Slice::all(&positions),
            count: kept.len() as u32,
            tokens,
            table: first,
            table_pages: table.len() as u32,
        };
        run.record(|rec| {
            for from in both.slabs() {
                for to in both.slabs() {
                    gpu::keep::record(rec, &layout, &part, &of, &from, &to)?;
                }
            }
            Ok(())
        })?;
        keep_on_cpu(&layout, &list, &kept, tokens, &table, &mut both.host);
        both.check(run).await
    })
}

pub(super) fn fetch<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (raw, dtype) = (run.cover(&RAW), run.cover(&DTYPES));
        let layout = drawn(run, 5)?;
        let class = match run.random.below(3) {
            0 if layout.sinks() > 0 => PageClass::Sink,
            1 => PageClass::Packed,
            _ => PageClass::Raw,
        };
        // Packed pages give their positions alone: their rows are the restored ones.
        let both = Both::new(run, &layout, class, &mut |random| random.odd_words(1)[0])?;
        let pages = both.pages(&layout);
        let cap = layout.rows(class) as u32;
        let mut list: Vec<FetchRows> = (0..)
            .zip(pages.iter().rev())
            .map(|(index, &from)| {
                let rows = run.random.below(cap as usize + 1) as u32;
                FetchRows { from, to: cap * index, rows, scale: 0 }
            })
            .collect();
        let end = cap * pages.len() as u32;
        let rows = (end + 300) as usize;
        for from in both.missing(&layout) {
            list.push(FetchRows { from, to: 0, rows: 3, scale: 0 });
        }
        list.push(FetchRows { from: pages[0], to: rows as u32 - 2, rows: cap, scale: 0 });
        let rest = [
            FetchRows { from: PageId::NONE, to: end, rows: FILL_ROWS, scale: 0 },
            FetchRows { from: PageId::NONE, to: end + FILL_ROWS, rows: 10, scale: 0 },
        ];
        let [dim_k, dim_v] = layout.head_dims();
        let mut host = [dim_k * dtype.bytes() / 4, dim_v * dtype.bytes() / 4, 1]
            .map(|each| run.random.odd_words(rows * each));
        let out = [run.upload(&host[0])?, run.upload(&host[1])?, run.upload(&host[2])?];
        let [keys, values, positions] = out.each_ref().map(|buffer| Some(Slice::all(buffer)));
        let to = gpu::fetch::Target { keys, values, positions, rows, dtype };
        with_list(run, &list, |rec, list| {
            both.slabs()
                .iter()
                .try_for_each(|slab| gpu::fetch::record(rec, &layout, list, raw, Some(slab), &to))
        })?;
        with_list(run, &rest, |rec, list| gpu::fetch::record(rec, &layout, list, raw, None, &to))?;
        let [keys, values, positions] = &mut host;
        let mut to = cpu::fetch::Target { keys, values, positions, dtype };
        cpu::fetch::fetch(&layout, class, &list, raw, Some(&both.host), &mut to);
        cpu::fetch::fetch(&layout, class, &rest, raw, None, &mut to);
        for ((what, host), out) in ["key", "value", "position"].into_iter().zip(&host).zip(&out) {
            let got: Vec<u32> = run.read(out, host.len()).await?;
            run.checks.equal(&format!("{what} word"), &got, host);
        }
        Ok(())
    })
}

/// Words of normal elements of a type.
fn normal_words(random: &mut Random, count: usize, dtype: Dtype) -> Vec<u32> {
    let data = crate::conformance::draw::Data::new(&random.normals(count), dtype);
    bytemuck::pod_collect_to_vec(data.view().bytes())
}

/// Raw pages of normal elements.
fn raw_pages(run: &mut Run<'_>, layout: &PoolLayout, raw: Dtype) -> Result<Both> {
    let mut both = Both::any(run, layout, PageClass::Raw)?;
    for slab in both.host.iter_mut().flatten() {
        for page in slab.chunks_mut(layout.words(PageClass::Raw)) {
            let values = layout.values_offset(PageClass::Raw);
            for (side, first) in [0, values].into_iter().enumerate() {
                let count = layout.chunk() * layout.head_dims()[side];
                let words = normal_words(&mut run.random, count, raw);
                // What is left of a slab is no page.
                if let Some(place) = page.get_mut(first..first + words.len()) {
                    place.copy_from_slice(&words);
                }
            }
        }
    }
    both.refresh(run)?;
    Ok(both)
}

pub(super) fn pack<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (raw, layout) = (run.cover(&RAW), drawn_packed(run, 2)?);
        let from_pages = raw_pages(run, &layout, raw)?;
        let mut packed = Both::any(run, &layout, PageClass::Packed)?;
        let (from, to) = (from_pages.pages(&layout), packed.pages(&layout));
        let mut list: Vec<Encode> = from
            .iter()
            .zip(to.iter().rev())
            .map(|(&from, &to)| Encode { from, to, scale: 0 })
            .collect();
        let whole = list.len();
        for (missing, other) in from_pages.missing(&layout).into_iter().zip(packed.missing(&layout))
        {
            list.push(Encode { from: missing, to: to[0], scale: 0 });
            list.push(Encode { from: from[0], to: other, scale: 0 });
        }
        let before = packed.host.clone();
        let (codecs, device) = codecs(run, &layout)?;
        with_list(run, &list, |rec, list| {
            for from in from_pages.slabs() {
                for to in packed.slabs() {
                    gpu::pack::record(rec, &layout, &device, list, raw, &from, &to, None)?;
                }
            }
            Ok(())
        })?;
        let host = &mut packed.host;
        cpu::pack::pack(&layout, &codecs, &list, raw, &from_pages.host, host, None)?;
        let theirs = packed.download(run).await?;
        let starts = |class| [0, layout.values_offset(class)];
        let places = |class| {
            let first = layout.positions_offset(class);
            first..first + layout.chunk()
        };
        for (path, slabs) in [("GPU", &theirs), ("CPU", &packed.host)] {
            for entry in &list[..whole] {
                let source = from_pages.page(&from_pages.host, &layout, entry.from);
                let page = packed.page(slabs, &layout, entry.to);
                for (side, codec) in codecs.iter().enumerate() {
                    let rows = &source[starts(PageClass::Raw)[side]..];
                    let rows = &rows[..layout.side_words(PageClass::Raw, side)];
                    let x = widen(elements(rows, raw));
                    let first = starts(PageClass::Packed)[side];
                    let part = &page[first..first + codec.layout().words()];
                    let (rules, book) = (rules(codec), book(codec));
                    judge_page(run, path, &rules, &book, side, &x, part, None, &[]);
                }
                let (got, want) =
                    (&page[places(PageClass::Packed)], &source[places(PageClass::Raw)]);
                run.checks.equal(&format!("position of the {path}"), got, want);
            }
            // Other pages are as they were.
            let touched = |page: &&PageId| list[..whole].iter().any(|entry| entry.to == **page);
            for other in to.iter().filter(|page| !touched(page)) {
                let was = packed.page(&before, &layout, *other);
                let got = packed.page(slabs, &layout, *other);
                run.checks.equal(&format!("word of an untouched page of the {path}"), got, was);
            }
        }
        Ok(())
    })
}

/// Compares unpacked elements: a step of their type or a small error.
fn near(run: &mut Run<'_>, what: &str, ours: Elements<'_>, theirs: Elements<'_>) {
    let step = match theirs.dtype() {
        Dtype::F32 => 2e-5,
        Dtype::F16 => 1.5e-3,
        Dtype::Bf16 => 1e-2,
    };
    for index in 0..theirs.len() {
        let (a, b) = (f64::from(ours.get(index)), f64::from(theirs.get(index)));
        run.checks.near(what, index, a, b, step * b.abs() + 2e-5);
    }
}

/// Packed pages with content, the same on both paths.
fn packed(run: &mut Run<'_>, layout: &PoolLayout, codecs: &[Codec; 2]) -> Result<Both> {
    let from = raw_pages(run, layout, Dtype::F16)?;
    let mut packed = Both::any(run, layout, PageClass::Packed)?;
    let (pages, sources) = (packed.pages(layout), from.pages(layout));
    let list: Vec<Encode> = pages
        .iter()
        .zip(sources.iter().cycle())
        .map(|(&to, &from)| Encode { from, to, scale: 0 })
        .collect();
    cpu::pack::pack(layout, codecs, &list, Dtype::F16, &from.host, &mut packed.host, None)?;
    packed.refresh(run)?;
    Ok(packed)
}

pub(super) fn restore<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (raw, dense) = (run.cover(&RAW), run.cover(&[false, true]));
        let layout = drawn_packed(run, 4)?;
        let (codecs, device) = codecs(run, &layout)?;
        let packed = packed(run, &layout, &codecs)?;
        if dense {
            return restore_dense(run, &layout, &codecs, &device, &packed).await;
        }
        let chunk = layout.chunk();
        let mut to = raw_pages(run, &layout, raw)?;
        let (pages, targets) = (packed.pages(&layout), to.pages(&layout));
        let mut list: Vec<Restore> = targets[1..]
            .iter()
            .zip(pages.iter().rev())
            .map(|(&to, &from)| {
                let rows = run.random.between(1, chunk + 1) as u32;
                Restore { from, to, rows, scale: 0 }
            })
            .collect();
        let whole = list.len();
        for (missing, other) in packed.missing(&layout).into_iter().zip(to.missing(&layout)) {
            list.push(Restore { from: missing, to: targets[0], rows: 2, scale: 0 });
            list.push(Restore { from: pages[0], to: other, rows: 2, scale: 0 });
        }
        with_list(run, &list, |rec, list| {
            for from in packed.slabs() {
                for to in to.slabs() {
                    gpu::restore::record(rec, &layout, &device, list, raw, &from, &to, None)?;
                }
            }
            Ok(())
        })?;
        cpu::restore::restore(&layout, &codecs, &list, raw, &packed.host, &mut to.host, None);
        let theirs = to.download(run).await?;
        let values = layout.values_offset(PageClass::Raw);
        let positions = layout.positions_offset(PageClass::Raw);
        for page in &targets {
            let (ours, want) =
                (to.page(&theirs, &layout, *page), to.page(&to.host, &layout, *page));
            let entry = list[..whole].iter().find(|entry| entry.to == *page);
            let rows = entry.map_or(0, |entry| entry.rows as usize).min(chunk);
            for (side, first) in [0, values].into_iter().enumerate() {
                let words = rows * layout.row_words(side);
                let part = first..first + words;
                let (a, b) = (elements(&ours[part.clone()], raw), elements(&want[part], raw));
                near(run, "restored element", a, b);
                let rest = first + words..first + layout.side_words(PageClass::Raw, side);
                run.checks.equal("word behind", &ours[rest.clone()], &want[rest]);
            }
            run.checks.equal("position", &ours[positions..], &want[positions..]);
        }
        Ok(())
    })
}

async fn restore_dense(
    run: &mut Run<'_>,
    layout: &PoolLayout,
    codecs: &[Codec; 2],
    device: &[DeviceCodec; 2],
    packed: &Both,
) -> Result<()> {
    let (dtype, side) = (run.random.pick(&DTYPES), run.random.below(2));
    let (pages, chunk) = (packed.pages(layout), layout.chunk() as u32);
    let mut list: Vec<FetchRows> = (0..)
        .zip(&pages)
        .map(|(index, &from)| {
            let rows = 1 + index % chunk;
            FetchRows { from, to: chunk * index, rows, scale: 0 }
        })
        .collect();
    for from in packed.missing(layout) {
        list.push(FetchRows { from, to: 0, rows: 3, scale: 0 });
    }
    // The last page goes beyond the tensor.
    let end = chunk * pages.len() as u32;
    let rows = end as usize - 1;
    list.push(FetchRows { from: pages[0], to: end, rows: 4, scale: 0 });
    let count = rows * layout.head_dims()[side];
    let mut host = normal_words(&mut run.random, count, dtype);
    let out = run.upload(&host)?;
    with_list(run, &list, |rec, list| {
        let to = Dense { words: Slice::all(&out), rows, dtype };
        packed.slabs().iter().try_for_each(|from| {
            gpu::restore::record_dense(rec, layout, &device[side], side, list, from, &to, None)
        })
    })?;
    let (codec, from) = (&codecs[side], &packed.host);
    cpu::restore::restore_dense(layout, codec, side, &list, from, dtype, &mut host, None);
    let got: Vec<u32> = run.read(&out, host.len()).await?;
    near(run, "dense element", elements(&got, dtype), elements(&host, dtype));
    Ok(())
}

pub(super) fn scales<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (dim, sinks) = run.random.pick(&[(64usize, 4usize), (80, 0), (16, 1), (128, 2)]);
        let scheme = Profile::Tuned.scheme(Bits::Two);
        let with = |bytes| PoolLayout::with(dim, 64, Some([scheme; 2]), true, 8, sinks, bytes);
        let roomy = with(1 << 24)?;
        let most = PageClass::ALL.map(|class| roomy.bytes(class)).into_iter().max().unwrap_or(0);
        let layout = with(5 * most)?;
        // Factors from 1/2 to 2.
        let mut word = |random: &mut Random| {
            let mut factor = || u32::from(f16::from_f32(random.within(0.5, 2.0)).to_bits());
            factor() | factor() << 16
        };
        let both = Both::new(run, &layout, PageClass::Sink, &mut word)?;
        let pages = both.pages(&layout);
        let rows = pages.len();
        let mut list: Vec<ScaleRow> =
            pages.iter().rev().zip(0..).map(|(&page, row)| ScaleRow { page, row }).collect();
        for page in both.missing(&layout) {
            list.push(ScaleRow { page, row: 0 });
        }
        list.push(ScaleRow { page: pages[0], row: rows as u32 });
        let out = run.context.create("scales", (2 * rows * dim) as u64)?;
        with_list(run, &list, |rec, list| {
            both.slabs().iter().try_for_each(|slab| {
                gpu::scales::record(rec, &layout, list, slab, Slice::all(&out), rows)
            })
        })?;
        let want = cpu::scales::scales(&layout, &list, &both.host, rows);
        let bits = |list: &[f16]| list.iter().map(|f| f.to_bits()).collect::<Vec<u16>>();
        let got: Vec<f16> = run.read(&out, want.len()).await?;
        run.checks.equal("factor", &bits(&got), &bits(&want));
        Ok(())
    })
}
