//! Batches of rows in pages, run on every path and judged.

use half::{bf16, f16};
use wgkv::attention::cpu::{Attended, PagedView};
use wgkv::attention::gpu::{self, DevicePagedView, DeviceQueries, DeviceTables};
use wgkv::attention::{Causal, PagedAttend, Queries, cpu};
use wgkv::gpu::{Context, Recorder, Slice};
use wgkv::judge::attention::{Rows, Rules};
use wgkv::judge::{codec as judge, from_bf16, from_f16, widen};
use wgkv::layout::pool::{PageClass, PageId, PoolLayout};
use wgkv::layout::tables::Tables;
use wgkv::layout::{Bits, Profile, Scheme};
use wgkv::nsnquant::cpu::encode_at;
use wgkv::nsnquant::gpu::{DeviceCodebook, DeviceCodec};
use wgkv::nsnquant::{Codebook, Codec, KeyScales, Rope};
use wgkv::shape::{Dtype, Elements};
use wgkv::wgpu;

use crate::common::{Data, Kind, Path, Random, Ruled, rules};
use crate::support;

/// What all members of a batch share.
#[derive(Clone, Debug)]
pub struct Shape {
    pub dims: [usize; 2],
    /// Rates of the profile compat.
    pub bits: Option<(u32, u32)>,
    /// Or any schemes.
    pub schemes: Option<[Scheme; 2]>,
    pub chunk: usize,
    pub sinks: usize,
    pub raw: Dtype,
    /// Raw pages of a slab.
    pub slab_pages: usize,
    pub group: usize,
    pub tokens: usize,
    pub query_dtype: Dtype,
    pub kinds: [Kind; 3],
    /// Whether keys are packed under key scales.
    pub scaled: bool,
    /// The rotary embedding of the keys, which packed pages take off.
    pub rope: Option<Rope>,
}

impl Shape {
    pub fn simple(dim: usize) -> Self {
        Self {
            dims: [dim; 2],
            bits: Some((2, 2)),
            schemes: None,
            chunk: 64,
            sinks: 4,
            raw: Dtype::F16,
            slab_pages: 8,
            group: 2,
            tokens: 1,
            query_dtype: Dtype::F32,
            kinds: [Kind::Normal, Kind::Offset, Kind::Normal],
            scaled: false,
            rope: None,
        }
    }

    /// How keys and values are packed, if they are.
    fn packed(&self) -> Option<[Scheme; 2]> {
        let scheme = |bits| Profile::Compat.scheme(Bits::new("bits", bits).expect("1 or 2 bits"));
        self.schemes.or(self.bits.map(|(keys, values)| [scheme(keys), scheme(values)]))
    }

    pub fn layout(&self) -> PoolLayout {
        let [dim_k, dim_v] = self.dims;
        let schemes = self.packed();
        let (chunk, sinks) = (self.chunk, self.sinks);
        let layout = |bytes| PoolLayout::with(dim_k, dim_v, schemes, false, chunk, sinks, bytes);
        let roomy = layout(1 << 30).expect("a layout");
        let largest = PageClass::ALL.map(|class| roomy.bytes(class)).into_iter().max();
        let raw = roomy.bytes(PageClass::Raw) * self.slab_pages as u64;
        layout(raw.max(largest.unwrap_or(0))).expect("a layout")
    }
}

/// Sink rows, packed pages and tail rows of a head.
pub type Head = (usize, usize, usize);

/// A member of a batch; its content depends on the seed and its own heads alone.
#[derive(Clone, Debug)]
pub struct Member {
    pub seed: u64,
    pub heads: Vec<Head>,
}

/// Content of one head.
#[derive(Default)]
struct Rowful {
    /// Words of the pages, by class.
    pages: [Vec<Vec<u32>>; 3],
    rows: [usize; 3],
    keys: Vec<f64>,
    values: Vec<f64>,
    positions: Vec<u32>,
    scale: Vec<f16>,
}

pub struct Batch {
    pub shape: Shape,
    pub layout: PoolLayout,
    pub codecs: Option<[Codec; 2]>,
    pub tables: Tables,
    pub slabs: [Vec<Option<Vec<u32>>>; 3],
    pub rows: Rows,
    pub queries: Data,
    pub key_scales: Option<Vec<f16>>,
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

fn decoded(codec: &Codec, page: &[u32], scale: Option<&[f16]>, positions: &[u32]) -> Vec<f64> {
    let book: Vec<f64> = codec.book().values().iter().map(|v| f64::from(*v)).collect();
    let rules = rules(codec);
    let scale: Option<Vec<f64>> = scale.map(|scale| scale.iter().map(|v| v.to_f64()).collect());
    judge::decode(&rules, &judge::unpack(&rules, page), &book, scale.as_deref(), positions)
}

impl Rowful {
    fn new(
        shape: &Shape,
        layout: &PoolLayout,
        codecs: Option<&[Codec; 2]>,
        head: Head,
        next: u32,
        random: &mut Random,
    ) -> Self {
        let mut content = Self::default();
        let count = head.0 + head.1 * shape.chunk + head.2;
        // The newest positions are all there; the others are a choice.
        let newest = count.min(shape.tokens + 2);
        let mut old: Vec<u32> = (0..next - newest as u32).collect();
        while old.len() > count - newest {
            old.swap_remove(random.below(old.len()));
        }
        old.sort_unstable();
        content.positions = old.into_iter().chain(next - newest as u32..next).collect();
        if shape.scaled {
            let factor = |_| f16::from_f32((2.0 * random.uniform() - 1.0).exp2());
            content.scale = (0..shape.dims[0]).map(factor).collect();
        }
        let mut done = 0;
        let mut page = |class: PageClass, rows: usize, content: &mut Self| {
            let mut words = vec![0; layout.words(class)];
            let at = [0, layout.values_offset(class)];
            let kinds = [shape.kinds[1], shape.kinds[2]];
            let positions = &content.positions[done..done + rows];
            for side in 0..2 {
                let dim = shape.dims[side];
                let values = random.values(kinds[side], rows, dim);
                let (part, reals) = if class == PageClass::Packed {
                    let codec = &codecs.expect("codecs")[side];
                    let data = Elements::F32(&values);
                    let scale = (shape.scaled && side == 0).then_some(content.scale.as_slice());
                    let scales = scale.map(|values| KeyScales { values, of_page: &[0] });
                    let part = encode_at(codec, data, positions, &[0], scales.as_ref());
                    let part = part.expect("a page");
                    let reals = decoded(codec, &part, scale, positions);
                    (part, reals)
                } else {
                    halves(shape.raw, &values)
                };
                words[at[side]..at[side] + part.len()].copy_from_slice(&part);
                [&mut content.keys, &mut content.values][side].extend(reals);
            }
            let at = layout.positions_offset(class);
            words[at..at + rows].copy_from_slice(&content.positions[done..done + rows]);
            done += rows;
            content.pages[class.index()].push(words);
            content.rows[class.index()] += rows;
        };
        if head.0 > 0 {
            page(PageClass::Sink, head.0, &mut content);
        }
        for _ in 0..head.1 {
            page(PageClass::Packed, shape.chunk, &mut content);
        }
        for first in (0..head.2).step_by(shape.chunk) {
            page(PageClass::Raw, shape.chunk.min(head.2 - first), &mut content);
        }
        content
    }
}

impl Batch {
    /// A batch whose pages are strewn over the slabs as `placing` has it; 0: one after the other.
    pub fn new(shape: &Shape, members: &[Member], placing: u64) -> Self {
        let layout = shape.layout();
        let [dim_k, dim_v] = shape.dims;
        let codecs = shape.packed().map(|[keys, values]| {
            let rope = shape.rope.clone();
            [(dim_k, keys, rope), (dim_v, values, None)].map(|(dim, scheme, rope)| {
                let book = Codebook::builtin();
                let codec = Codec::with("data", dim, scheme, shape.chunk, book);
                codec.and_then(|codec| codec.with_rope(rope)).expect("a codec")
            })
        });
        let mut tables = Tables { chunk: shape.chunk as u32, ..Tables::default() };
        tables.packed_offsets.push(0);
        tables.tail_offsets.push(0);
        let mut content = Vec::new();
        let mut queries = Vec::new();
        for member in members {
            let mut random = Random(member.seed);
            let count = |head: &Head| head.0 + head.1 * shape.chunk + head.2;
            let longest = member.heads.iter().map(count).max().unwrap_or(0);
            let next = (longest + longest / 2 + shape.tokens + 3) as u32;
            tables.next.push(next);
            for head in &member.heads {
                let codecs = codecs.as_ref();
                content.push(Rowful::new(shape, &layout, codecs, *head, next, &mut random));
            }
            let rows = member.heads.len() * shape.group * shape.tokens;
            queries.extend(random.values(shape.kinds[0], rows, dim_k));
        }
        let mut place = Random(placing);
        let mut slabs: [Vec<Option<Vec<u32>>>; 3] = Default::default();
        let mut free: [Vec<PageId>; 3] = Default::default();
        for class in PageClass::ALL {
            let pages: usize = content.iter().map(|row| row.pages[class.index()].len()).sum();
            let each = layout.pages_per_slab(class) as usize;
            let count = pages.div_ceil(each.max(1)) + usize::from(placing > 0 && each > 0);
            let words = (layout.slab_bytes(class) / 4) as usize;
            for slab in 0..count {
                // What no page of the batch holds is full of NaN.
                slabs[class.index()].push(Some(vec![u32::MAX; words]));
                for index in 0..each {
                    free[class.index()].push(layout.page(class, slab as u32, index as u32));
                }
            }
        }
        let mut take = |class: PageClass, words: &[u32]| {
            let free = &mut free[class.index()];
            let page = match placing {
                0 => free.remove(0),
                _ => free.swap_remove(place.below(free.len())),
            };
            let slab = layout.slab_of(class, page) as usize;
            let first = layout.word_of(class, page);
            let slab = slabs[class.index()][slab].as_mut().expect("a slab");
            slab[first..first + words.len()].copy_from_slice(words);
            page
        };
        let mut rows = Rows::default();
        let scale = |row: &Rowful| row.scale.clone();
        let key_scales = shape.scaled.then(|| content.iter().flat_map(scale).collect());
        for row in content {
            let [sinks, packed, tail] = &row.pages;
            let sink = sinks.iter().map(|words| take(PageClass::Sink, words)).next();
            tables.sinks.push(sink.unwrap_or(PageId::NONE));
            tables.sink_rows.push(row.rows[0] as u32);
            tables.packed.extend(packed.iter().map(|words| take(PageClass::Packed, words)));
            tables.packed_offsets.push(tables.packed.len() as u32);
            tables.tail.extend(tail.iter().map(|words| take(PageClass::Raw, words)));
            tables.tail_offsets.push(tables.tail.len() as u32);
            tables.tail_rows.push(row.rows[2] as u32);
            rows.keys.push(row.keys);
            rows.values.push(row.values);
            rows.positions.push(row.positions);
        }
        let queries = Data::new(shape.query_dtype, &queries);
        Self { shape: shape.clone(), layout, codecs, tables, slabs, rows, queries, key_scales }
    }

    /// Puts other rows in the place of those of a packed page of the first row, which has no sinks.
    pub fn repack(&mut self, number: usize, sides: [&[f32]; 2]) {
        let class = PageClass::Packed;
        let page = self.tables.packed[number];
        let slab = self.layout.slab_of(class, page) as usize;
        let first = self.layout.word_of(class, page);
        let at = [first, first + self.layout.values_offset(class)];
        let slab = self.slabs[class.index()][slab].as_mut().expect("a slab");
        let rows = number * self.shape.chunk..(number + 1) * self.shape.chunk;
        let positions = &self.rows.positions[0][rows.clone()];
        let codecs = self.codecs.as_ref().expect("codecs");
        for (side, values) in sides.into_iter().enumerate() {
            let (codec, dim) = (&codecs[side], self.shape.dims[side]);
            let part = encode_at(codec, Elements::F32(values), positions, &[0], None);
            let part = part.expect("a page");
            slab[at[side]..at[side] + part.len()].copy_from_slice(&part);
            let reals = decoded(codec, &part, None, positions);
            let list = [&mut self.rows.keys[0], &mut self.rows.values[0]];
            list[side][rows.start * dim..rows.end * dim].copy_from_slice(&reals);
        }
    }

    pub fn heads(&self) -> usize {
        self.tables.rows() / self.tables.next.len() * self.shape.group
    }

    pub fn view(&self) -> PagedView<'_> {
        let [sinks, packed, tail] = &self.slabs;
        PagedView {
            key_scales: self.key_scales.as_deref(),
            layout: &self.layout,
            raw: self.shape.raw,
            codecs: self.codecs.as_ref().map(|[keys, values]| [keys, values]),
            tables: &self.tables,
            slabs: [sinks, packed, tail],
        }
    }

    pub fn query_view(&self) -> Queries<'_> {
        Queries {
            data: self.queries.elements(),
            batch: self.tables.next.len(),
            heads: self.heads(),
            tokens: self.shape.tokens,
            head_dim: self.shape.dims[0],
        }
    }

    pub fn cpu(&self, config: &PagedAttend<'_>) -> wgkv::Result<Attended> {
        cpu::attend_paged(&self.view(), &self.query_view(), config)
    }

    /// Runs on the device; returns the dispatches too.
    pub fn gpu_counted(&self, config: &PagedAttend<'_>) -> wgkv::Result<(Attended, u64)> {
        self.gpu_with(config, Ok)
    }

    /// As [`Batch::gpu_counted`], with tables that `change` makes of those uploaded.
    pub fn gpu_with(
        &self,
        config: &PagedAttend<'_>,
        change: impl FnOnce(DeviceTables) -> wgkv::Result<DeviceTables>,
    ) -> wgkv::Result<(Attended, u64)> {
        self.gpu_on(support::context(), config, change)
    }

    /// As [`Batch::gpu_with`], on a device of its own.
    pub fn gpu_on(
        &self,
        context: &Context,
        config: &PagedAttend<'_>,
        change: impl FnOnce(DeviceTables) -> wgkv::Result<DeviceTables>,
    ) -> wgkv::Result<(Attended, u64)> {
        let upload = |bytes: &[u8]| context.upload("test", bytes).expect("a buffer");
        let slabs = self.slabs.each_ref().map(|slabs| {
            let slab = |words: &Option<Vec<u32>>| {
                words.as_ref().map(|words| upload(bytemuck::cast_slice(words)))
            };
            slabs.iter().map(slab).collect::<Vec<Option<wgpu::Buffer>>>()
        });
        let [sinks, packed, tail] = &slabs;
        let tables = change(DeviceTables::new(context, &self.layout, &self.tables)?)?;
        let codebook = DeviceCodebook::new(context, &Codebook::builtin())?;
        let device = |[keys, _]: &[Codec; 2]| DeviceCodec::new(context, keys.clone());
        let keys = self.codecs.as_ref().map(device).transpose()?;
        let key_scales = self.key_scales.as_ref().map(|v| upload(bytemuck::cast_slice(v)));
        let view = DevicePagedView {
            key_scales: key_scales.as_ref().map(Slice::all),
            layout: &self.layout,
            raw: self.shape.raw,
            codebook: self.codecs.is_some().then_some(&codebook),
            keys: keys.as_ref(),
            tables: &tables,
            slabs: [sinks, packed, tail],
        };
        let queries = upload(self.queries.elements().bytes());
        let queries = DeviceQueries {
            data: Slice::all(&queries),
            dtype: self.queries.elements().dtype(),
            batch: self.tables.next.len(),
            heads: self.heads(),
            tokens: self.shape.tokens,
            head_dim: self.shape.dims[0],
        };
        let record = |rec: &mut Recorder<'_>| {
            let attended = gpu::attend_paged(rec, &view, &queries, config)?;
            let count = rec.dispatches();
            let out = rec.read_back(Slice::all(&attended.out))?;
            Ok((out, rec.read_back(Slice::all(&attended.lse))?, count))
        };
        let (out, lse, count) = support::run_on(context, record)?;
        let floats = |bytes: Vec<u8>| bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
        let (out, lse) = (floats(support::wait(out)), floats(support::wait(lse)));
        Ok((Attended { out, lse }, count))
    }

    pub fn run(&self, path: Path, config: &PagedAttend<'_>) -> Attended {
        match path {
            Path::Cpu => self.cpu(config).expect("attention"),
            Path::Gpu => self.gpu_counted(config).expect("attention").0,
        }
    }

    pub fn judge(&self, got: &Attended, config: &PagedAttend<'_>, slack: f64) {
        let tokens = self.shape.tokens as u32;
        let newest: Vec<u32> = self.tables.next.iter().map(|next| next - tokens).collect();
        let ruled = Ruled {
            queries: widen(self.queries.elements()),
            batch: self.tables.next.len(),
            heads: self.heads(),
            tokens: self.shape.tokens,
            dims: self.shape.dims,
            rows: self.rows.clone(),
            rules: Rules {
                scale: config.scale.map(f64::from),
                cap: config.soft_cap.map(f64::from),
                firsts: match config.causal {
                    Causal::All => None,
                    Causal::Newest => Some(&newest),
                    Causal::From(firsts) => Some(firsts),
                },
                window: config.window.map(u64::from),
            },
        };
        ruled.judge(got, slack);
    }

    pub fn judge_on(&self, path: Path, config: &PagedAttend<'_>, slack: f64) {
        println!("{path:?} {config:?}");
        self.judge(&self.run(path, config), config, slack);
    }
}
