//! Attention to rows in pages, on both paths against the judge.

use half::{bf16, f16};

use super::attention::{
    Covered, Kind, OTHERS, ROPE_DIMS, Ruled, SCALED_SLACK, SLACK, TELLING, WIDE, decoded, raw_dim,
};
use super::nsnquant::scheme;
use crate::attention::cpu::{Attended, PagedView, attend_paged};
use crate::attention::gpu::{self, DevicePagedView, DeviceQueries, DeviceTables};
use crate::attention::{Causal, PagedAttend, Queries};
use crate::conformance::draw::{Data, Random};
use crate::conformance::run::{Job, Run};
use crate::error::Result;
use crate::gpu::Slice;
use crate::judge::attention::{Rows, Rules};
use crate::judge::{from_bf16, from_f16, widen};
use crate::layout::Scheme;
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::layout::tables::Tables;
use crate::nsnquant::cpu::encode_at;
use crate::nsnquant::gpu::{DeviceCodebook, DeviceCodec};
use crate::nsnquant::{Codebook, Codec, KeyScales, Pairing, Rope};
use crate::shape::{Dtype, Elements};

/// What all members of a batch share.
#[derive(Clone, Debug)]
struct Shape {
    dims: [usize; 2],
    schemes: Option<[Scheme; 2]>,
    chunk: usize,
    sinks: usize,
    raw: Dtype,
    /// Raw pages of a slab.
    slab_pages: usize,
    group: usize,
    tokens: usize,
    kinds: [Kind; 3],
    scaled: bool,
    rope: Option<Rope>,
    /// Whether all pages of a class lie in one slab, for which kernels of their own are built.
    one_slab: bool,
}

impl Shape {
    fn layout(&self) -> Result<PoolLayout> {
        let [dim_k, dim_v] = self.dims;
        let (chunk, sinks) = (self.chunk, self.sinks);
        let layout =
            |bytes| PoolLayout::with(dim_k, dim_v, self.schemes, false, chunk, sinks, bytes);
        let roomy = layout(1 << 30)?;
        let largest = PageClass::ALL.map(|class| roomy.bytes(class)).into_iter().max();
        let raw = roomy.bytes(PageClass::Raw) * self.slab_pages as u64;
        layout(raw.max(largest.unwrap_or(0)))
    }
}

/// Content of one head.
#[derive(Default)]
struct Head {
    /// Words of the pages, by class.
    pages: [Vec<Vec<u32>>; 3],
    rows: [usize; 3],
    sides: [Vec<f64>; 2],
    positions: Vec<u32>,
    scale: Vec<f16>,
}

fn halves(raw: Dtype, values: &[f32]) -> (Vec<u32>, Vec<f64>) {
    let bits: Vec<u16> = match raw {
        Dtype::Bf16 => values.iter().map(|v| bf16::from_f32(*v).to_bits()).collect(),
        _ => values.iter().map(|v| f16::from_f32(*v).to_bits()).collect(),
    };
    let read = |bits: &u16| if raw == Dtype::Bf16 { from_bf16(*bits) } else { from_f16(*bits) };
    let reals = bits.iter().map(read).collect();
    let words = bits.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
    (words.collect(), reals)
}

impl Head {
    /// Sink rows, packed pages and tail rows of a sequence whose next position is `next`.
    fn new(
        shape: &Shape,
        layout: &PoolLayout,
        codecs: Option<&[Codec; 2]>,
        [sinks, packed, tail]: [usize; 3],
        next: u32,
        random: &mut Random,
    ) -> Result<Self> {
        let mut head = Self::default();
        let count = sinks + packed * shape.chunk + tail;
        // The newest positions are all there; the others are a choice.
        let newest = count.min(shape.tokens + 2);
        let mut old: Vec<u32> = (0..next - newest as u32).collect();
        while old.len() > count - newest {
            old.swap_remove(random.below(old.len()));
        }
        old.sort_unstable();
        head.positions = old.into_iter().chain(next - newest as u32..next).collect();
        if shape.scaled {
            let factor = |_| f16::from_f32((2.0 * random.unit() - 1.0).exp2());
            head.scale = (0..shape.dims[0]).map(factor).collect();
        }
        let mut list = vec![(PageClass::Sink, sinks); usize::from(sinks > 0)];
        list.extend((0..packed).map(|_| (PageClass::Packed, shape.chunk)));
        let tails = (0..tail).step_by(shape.chunk);
        list.extend(tails.map(|first| (PageClass::Raw, shape.chunk.min(tail - first))));
        let mut done = 0;
        for (class, rows) in list {
            let words = head.page(shape, layout, codecs, class, done, rows, random)?;
            head.pages[class.index()].push(words);
            head.rows[class.index()] += rows;
            done += rows;
        }
        Ok(head)
    }

    /// Words of a page of rows from `done` on.
    fn page(
        &mut self,
        shape: &Shape,
        layout: &PoolLayout,
        codecs: Option<&[Codec; 2]>,
        class: PageClass,
        done: usize,
        rows: usize,
        random: &mut Random,
    ) -> Result<Vec<u32>> {
        let mut words = vec![0; layout.words(class)];
        let positions = self.positions[done..done + rows].to_vec();
        for (side, first) in [0, layout.values_offset(class)].into_iter().enumerate() {
            let values = shape.kinds[1 + side].values(random, rows, shape.dims[side]);
            let (part, reals) = match codecs.filter(|_| class == PageClass::Packed) {
                Some(codecs) => {
                    let codec = &codecs[side];
                    let scaled = shape.scaled && side == 0;
                    let scales = KeyScales { values: &self.scale, of_page: &[0] };
                    let scales = scaled.then_some(&scales);
                    let part = encode_at(codec, Elements::F32(&values), &positions, &[0], scales)?;
                    let wide: Vec<f64> = self.scale.iter().map(|v| v.to_f64()).collect();
                    let wide = scaled.then_some(wide.as_slice());
                    let reals = decoded(codec, &part, wide, &positions);
                    (part, reals)
                }
                None => halves(shape.raw, &values),
            };
            words[first..first + part.len()].copy_from_slice(&part);
            self.sides[side].extend(reals);
        }
        let at = layout.positions_offset(class);
        words[at..at + rows].copy_from_slice(&positions);
        Ok(words)
    }
}

/// A batch of sequences in pages that are strewn over slabs.
struct Batch {
    shape: Shape,
    layout: PoolLayout,
    codecs: Option<[Codec; 2]>,
    tables: Tables,
    slabs: [Vec<Option<Vec<u32>>>; 3],
    rows: Rows,
    queries: Data,
    key_scales: Option<Vec<f16>>,
}

impl Batch {
    /// Members by the counts of their heads.
    fn new(shape: &Shape, members: &[Vec<[usize; 3]>], random: &mut Random) -> Result<Self> {
        let layout = shape.layout()?;
        let codec = |side: usize, scheme: Scheme| -> Result<Codec> {
            let (dim, book) = (shape.dims[side], Codebook::builtin());
            let codec = Codec::with("data", dim, scheme, shape.chunk, book)?;
            codec.with_rope(shape.rope.clone().filter(|_| side == 0))
        };
        let codecs = match shape.schemes {
            Some([keys, values]) => Some([codec(0, keys)?, codec(1, values)?]),
            None => None,
        };
        let mut tables = Tables { chunk: shape.chunk as u32, ..Tables::default() };
        tables.packed_offsets.push(0);
        tables.tail_offsets.push(0);
        let (mut heads, mut queries) = (Vec::new(), Vec::new());
        for member in members {
            let count = |head: &[usize; 3]| head[0] + head[1] * shape.chunk + head[2];
            let longest = member.iter().map(count).max().unwrap_or(0);
            let next = (longest + longest / 2 + shape.tokens + 3) as u32;
            tables.next.push(next);
            for head in member {
                heads.push(Head::new(shape, &layout, codecs.as_ref(), *head, next, random)?);
            }
            let rows = member.len() * shape.group * shape.tokens;
            queries.extend(shape.kinds[0].values(random, rows, shape.dims[0]));
        }
        let mut slabs: [Vec<Option<Vec<u32>>>; 3] = Default::default();
        let mut free: [Vec<PageId>; 3] = Default::default();
        for class in PageClass::ALL {
            let pages: usize = heads.iter().map(|head| head.pages[class.index()].len()).sum();
            let each = layout.pages_per_slab(class) as usize;
            let spare = usize::from(!shape.one_slab);
            let count = if each > 0 { pages.div_ceil(each) + spare } else { 0 };
            let words = (layout.slab_bytes(class) / 4) as usize;
            for slab in 0..count {
                // What no page of the batch holds is full of NaN.
                slabs[class.index()].push(Some(vec![u32::MAX; words]));
                let page = |index| layout.page(class, slab as u32, index as u32);
                free[class.index()].extend((0..each).map(page));
            }
        }
        let mut take = |class: PageClass, words: &[u32]| {
            let free = &mut free[class.index()];
            let page = free.swap_remove(random.below(free.len()));
            let (slab, first) = (layout.slab_of(class, page), layout.word_of(class, page));
            if let Some(Some(slab)) = slabs[class.index()].get_mut(slab as usize) {
                slab[first..first + words.len()].copy_from_slice(words);
            }
            page
        };
        let mut rows = Rows::default();
        let scales = heads.iter().flat_map(|head| head.scale.clone());
        let key_scales = shape.scaled.then(|| scales.collect());
        for head in heads {
            let [sinks, packed, tail] = &head.pages;
            let sink = sinks.first().map(|words| take(PageClass::Sink, words));
            tables.sinks.push(sink.unwrap_or(PageId::NONE));
            tables.sink_rows.push(head.rows[0] as u32);
            tables.packed.extend(packed.iter().map(|words| take(PageClass::Packed, words)));
            tables.packed_offsets.push(tables.packed.len() as u32);
            tables.tail.extend(tail.iter().map(|words| take(PageClass::Raw, words)));
            tables.tail_offsets.push(tables.tail.len() as u32);
            tables.tail_rows.push(head.rows[2] as u32);
            let [keys, values] = head.sides;
            rows.keys.push(keys);
            rows.values.push(values);
            rows.positions.push(head.positions);
        }
        let queries = Data::new(&queries, shape.raw);
        let shape = shape.clone();
        Ok(Self { shape, layout, codecs, tables, slabs, rows, queries, key_scales })
    }

    fn heads(&self) -> usize {
        self.tables.rows() / self.tables.next.len() * self.shape.group
    }

    fn on_cpu(&self, config: &PagedAttend<'_>) -> Result<Attended> {
        let [sinks, packed, tail] = &self.slabs;
        let view = PagedView {
            key_scales: self.key_scales.as_deref(),
            layout: &self.layout,
            raw: self.shape.raw,
            codecs: self.codecs.as_ref().map(|[keys, values]| [keys, values]),
            tables: &self.tables,
            slabs: [sinks, packed, tail],
        };
        let queries = Queries {
            data: self.queries.view(),
            batch: self.tables.next.len(),
            heads: self.heads(),
            tokens: self.shape.tokens,
            head_dim: self.shape.dims[0],
        };
        attend_paged(&view, &queries, config)
    }

    async fn on_gpu(&self, run: &Run<'_>, config: &PagedAttend<'_>) -> Result<Attended> {
        let mut slabs: [Vec<Option<wgpu::Buffer>>; 3] = Default::default();
        for (slabs, words) in slabs.iter_mut().zip(&self.slabs) {
            for words in words {
                slabs.push(words.as_ref().map(|words| run.upload(words)).transpose()?);
            }
        }
        let [sinks, packed, tail] = &slabs;
        let tables = DeviceTables::new(run.context, &self.layout, &self.tables)?;
        let codebook = DeviceCodebook::new(run.context, &Codebook::builtin())?;
        let device = |[keys, _]: &[Codec; 2]| DeviceCodec::new(run.context, keys.clone());
        let keys = self.codecs.as_ref().map(device).transpose()?;
        let scales = self.key_scales.as_ref().map(|values| run.upload(values)).transpose()?;
        let view = DevicePagedView {
            key_scales: scales.as_ref().map(Slice::all),
            layout: &self.layout,
            raw: self.shape.raw,
            codebook: self.codecs.is_some().then_some(&codebook),
            keys: keys.as_ref(),
            tables: &tables,
            slabs: [sinks, packed, tail],
        };
        let data = run.upload(self.queries.view().bytes())?;
        let (batch, heads, tokens) = (self.tables.next.len(), self.heads(), self.shape.tokens);
        let queries = DeviceQueries {
            data: Slice::all(&data),
            dtype: self.queries.view().dtype(),
            batch,
            heads,
            tokens,
            head_dim: self.shape.dims[0],
        };
        let attended = run.record(|rec| gpu::attend_paged(rec, &view, &queries, config))?;
        let count = batch * heads * tokens;
        Ok(Attended {
            out: run.read(&attended.out, count * self.shape.dims[1]).await?,
            lse: run.read(&attended.lse, count).await?,
        })
    }

    async fn judge(&self, run: &mut Run<'_>, config: &PagedAttend<'_>) -> Result<()> {
        let tokens = self.shape.tokens as u32;
        let newest: Vec<u32> = self.tables.next.iter().map(|next| next - tokens).collect();
        let ruled = Ruled {
            queries: widen(self.queries.view()),
            batch: self.tables.next.len(),
            heads: self.heads(),
            tokens: self.shape.tokens,
            dims: self.shape.dims,
            rows: self.rows.clone(),
            rules: Rules {
                scale: config.scale.map(f64::from),
                cap: config.soft_cap.map(f64::from),
                firsts: (config.causal != Causal::All).then_some(newest.as_slice()),
                window: config.window.map(u64::from),
            },
        };
        let slack = if self.shape.scaled { SCALED_SLACK } else { SLACK };
        let got = self.on_gpu(run, config).await?;
        ruled.judge(run, "GPU", &got, slack);
        ruled.judge(run, "CPU", &self.on_cpu(config)?, slack);
        Ok(())
    }
}

fn shape(run: &mut Run<'_>, packed: bool) -> Shape {
    const KINDS: [Kind; 4] = [Kind::Normal, Kind::Offset, Kind::Scaled(100.0), Kind::Scaled(1e-3)];
    Shape {
        dims: [0; 2].map(|_| run.random.pick(&[64usize, 80, 128])),
        schemes: packed.then(|| [0; 2].map(|_| scheme(&mut run.random))),
        chunk: run.random.pick(&[2usize, 5, 16, 33, 64]),
        sinks: run.random.below(6),
        raw: run.random.pick(&[Dtype::F16, Dtype::Bf16]),
        slab_pages: run.random.between(1, 19),
        group: run.count(1, 5),
        tokens: run.count(1, 3),
        kinds: [0; 3].map(|_| run.random.pick(&KINDS)),
        scaled: packed && run.random.odds(3),
        rope: None,
        one_slab: false,
    }
}

/// Counts of the heads of some members.
fn members(run: &mut Run<'_>, shape: &Shape) -> Vec<Vec<[usize; 3]>> {
    let heads = run.count(1, 3);
    let most = if shape.schemes.is_some() { 4 } else { 0 };
    let (sinks, tail) = (shape.sinks, 3 * shape.chunk);
    (0..run.count(1, 3))
        .map(|_| {
            (0..heads)
                .map(|_| match run.random.below(8) {
                    0 => [0, 0, 0],
                    1 => [sinks, 0, 0],
                    _ => [sinks, run.count(0, most), run.count(0, tail)],
                })
                .collect()
        })
        .collect()
}

async fn attend(run: &mut Run<'_>, shape: &mut Shape) -> Result<()> {
    if run.number().is_some_and(|number| number % 4 == 2) {
        // Room for the pages of any case.
        (shape.one_slab, shape.slab_pages) = (true, 64);
    }
    let shape = &*shape;
    let mut members = members(run, shape);
    if run.covers()
        && let Some(head) = members.first_mut().and_then(|heads| heads.first_mut())
    {
        *head = [shape.sinks, usize::from(shape.schemes.is_some()), 3];
    }
    let causal = run.random.pick(&[Causal::Newest, Causal::Newest, Causal::All]);
    let windowed = causal != Causal::All && run.random.odds(3);
    let config = PagedAttend {
        scale: None,
        causal,
        soft_cap: run.random.odds(3).then(|| run.random.pick(&[0.7, 50.0])),
        window: windowed.then(|| run.random.between(1, 200) as u32),
    };
    Batch::new(shape, &members, &mut run.random)?.judge(run, &config).await
}

pub(super) const RAW_COVERS: usize = 2 * WIDE.len() + OTHERS.len();

pub(super) fn raw<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, false);
        if run.covers() {
            shape.raw = run.cover(&[Dtype::F16, Dtype::Bf16]);
            shape.dims = [raw_dim(run, 2); 2];
            shape.kinds = TELLING;
        }
        attend(run, &mut shape).await
    })
}

pub(super) fn packed<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, true);
        if let Some(covered) = run.number().map(Covered::new) {
            shape.schemes = Some(covered.schemes);
            shape.dims = [covered.dim; 2];
            shape.chunk = covered.chunk.unwrap_or(shape.chunk);
            if let Some(queries) = covered.queries {
                (shape.group, shape.tokens) = (queries, 1);
            }
            shape.kinds = TELLING;
        }
        attend(run, &mut shape).await
    })
}

pub(super) fn rope<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, true);
        let pairing = run.cover(&Pairing::ALL);
        if let Some(dim) = run.number().and_then(|number| ROPE_DIMS.get(number)) {
            shape.dims = dim.map_or(shape.dims, |dim| [dim; 2]);
        }
        shape.rope = Some(Rope::with_theta(pairing, 1e4, shape.dims[0] / 2)?);
        attend(run, &mut shape).await
    })
}
