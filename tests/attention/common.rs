//! Caches and queries of any shape, run on every path and judged.

use half::{bf16, f16};
use wgkv::attention::cpu::Attended;
use wgkv::attention::gpu::{self, DeviceCacheView, DevicePackedView, DeviceQueries};
use wgkv::attention::{AttendConfig, CacheView, PackedView, Queries, cpu};
use wgkv::gpu::{Context, Slice};
use wgkv::judge::attention::{Rows, Rules};
use wgkv::judge::{self, widen};
use wgkv::layout::{Bits, PageLayout, Scheme};
use wgkv::nsnquant::cpu::encode_at;
use wgkv::nsnquant::gpu::DeviceCodec;
use wgkv::nsnquant::{Codebook, Codec, KeyScales, Rope};
use wgkv::shape::{Dtype, Elements};

use crate::support;

#[path = "../support/rules.rs"]
pub mod judge_rules;

pub use judge_rules::rules;

/// A path through the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Cpu,
    Gpu,
}

pub const PATHS: [Path; 2] = [Path::Cpu, Path::Gpu];

/// Owned elements of one type.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    pub fn new(dtype: Dtype, values: &[f32]) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values.to_vec()),
            Dtype::F16 => Self::F16(values.iter().map(|v| f16::from_f32(*v)).collect()),
            Dtype::Bf16 => Self::Bf16(values.iter().map(|v| bf16::from_f32(*v)).collect()),
        }
    }

    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }
}

/// What the values of a tensor are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Normal,
    Offset,
    Constant(f32),
    Scaled(f32),
    /// Now and then NaN or an infinity.
    Holes,
}

/// Weights carry a factor of 2^-20, so what lies below this may be lost.
const LOST: f64 = 1e-30;

/// A small generator, the same on every host.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Nearly normal: the sum of 12 uniform numbers less 6.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    pub fn values(&mut self, kind: Kind, rows: usize, dim: usize) -> Vec<f32> {
        let offsets: Vec<f32> = (0..dim).map(|_| 3.0 * self.normal()).collect();
        (0..rows * dim)
            .map(|at| match kind {
                Kind::Normal => self.normal(),
                Kind::Offset => offsets[at % dim] + self.normal(),
                Kind::Constant(value) => value,
                Kind::Scaled(factor) => factor * self.normal(),
                Kind::Holes => match self.below(200) {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => f32::NEG_INFINITY,
                    _ => self.normal(),
                },
            })
            .collect()
    }
}

/// Shape of a cache and of the queries on it.
#[derive(Clone, Debug)]
pub struct Shape {
    pub batch: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub tokens: usize,
    pub dim_k: usize,
    pub dim_v: usize,
    /// Raw tokens of each row.
    pub raw: Vec<usize>,
    /// Pages of each row; empty: nothing is packed.
    pub pages: Vec<usize>,
    pub chunk: usize,
    pub bits: (u32, u32),
    pub dtype: Dtype,
}

impl Shape {
    /// One sequence of one head with raw tokens only.
    pub fn simple(n: usize, dim: usize, dtype: Dtype) -> Self {
        Self {
            batch: 1,
            kv_heads: 1,
            group: 1,
            tokens: 1,
            dim_k: dim,
            dim_v: dim,
            raw: vec![n],
            pages: Vec::new(),
            chunk: 64,
            bits: (2, 2),
            dtype,
        }
    }

    pub fn rows(&self) -> usize {
        self.batch * self.kv_heads
    }
}

/// A cache and queries.
pub struct Case {
    pub shape: Shape,
    pub queries: Data,
    pub raw_offsets: Vec<u32>,
    pub keys: Data,
    pub values: Data,
    pub positions: Vec<u32>,
    pub key_codec: Codec,
    pub value_codec: Codec,
    pub page_offsets: Vec<u32>,
    pub key_pages: Vec<u32>,
    pub value_pages: Vec<u32>,
    pub page_positions: Vec<u32>,
    pub key_scales: Option<Vec<f16>>,
    pub config: AttendConfig,
}

pub fn codec(dim: usize, bits: u32, chunk: usize) -> Codec {
    let bits = Bits::new("bits", bits).expect("1 or 2 bits");
    let layout = PageLayout::new("data", dim, bits, chunk).expect("a layout");
    Codec::new(layout, Codebook::builtin()).expect("a codec")
}

fn offsets(counts: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut offsets = vec![0];
    for count in counts {
        offsets.push(offsets[offsets.len() - 1] + count as u32);
    }
    offsets
}

impl Case {
    /// A case of random content. Positions are a shuffle of all tokens of the row.
    pub fn new(shape: Shape, kinds: [Kind; 3], seed: u64) -> Self {
        let mut random = Random(seed);
        let rows = shape.rows();
        let [query_kind, key_kind, value_kind] = kinds;
        let pages: Vec<usize> = (0..rows).map(|r| *shape.pages.get(r).unwrap_or(&0)).collect();
        let raw_offsets = offsets(shape.raw.iter().copied());
        let page_offsets = offsets(pages.iter().copied());
        let (raw, packed) = (shape.raw.iter().sum::<usize>(), pages.iter().sum::<usize>());
        let query_rows = rows * shape.group * shape.tokens;
        let queries = random.values(query_kind, query_rows, shape.dim_k);
        let keys = random.values(key_kind, raw, shape.dim_k);
        let values = random.values(value_kind, raw, shape.dim_v);
        let key_codec = codec(shape.dim_k, shape.bits.0, shape.chunk);
        let value_codec = codec(shape.dim_v, shape.bits.1, shape.chunk);
        let starts: Vec<u32> = (0..packed).map(|p| (p * shape.chunk) as u32).collect();
        let mut pack = |codec: &Codec, kind, dim| {
            let data = Data::new(shape.dtype, &random.values(kind, packed * shape.chunk, dim));
            wgkv::nsnquant::cpu::encode(codec, data.elements(), &starts).expect("pages")
        };
        let key_pages = pack(&key_codec, key_kind, shape.dim_k);
        let value_pages = pack(&value_codec, value_kind, shape.dim_v);
        let (mut positions, mut page_positions) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let count = shape.raw[row] + pages[row] * shape.chunk;
            let mut order: Vec<u32> = (0..count as u32).collect();
            for i in (1..count).rev() {
                order.swap(i, random.below(i + 1));
            }
            positions.extend(&order[..shape.raw[row]]);
            page_positions.extend(&order[shape.raw[row]..]);
        }
        Self {
            queries: Data::new(shape.dtype, &queries),
            keys: Data::new(shape.dtype, &keys),
            values: Data::new(shape.dtype, &values),
            raw_offsets,
            positions,
            key_codec,
            value_codec,
            page_offsets,
            key_pages,
            value_pages,
            page_positions,
            key_scales: None,
            config: AttendConfig::default(),
            shape,
        }
    }

    pub fn view(&self) -> CacheView<'_> {
        CacheView {
            kv_rows: self.shape.rows(),
            head_dim_k: self.shape.dim_k,
            head_dim_v: self.shape.dim_v,
            raw_offsets: &self.raw_offsets,
            raw_keys: self.keys.elements(),
            raw_values: self.values.elements(),
            raw_positions: &self.positions,
            packed: (!self.shape.pages.is_empty()).then_some(PackedView {
                key_scales: self.key_scales.as_deref(),
                keys: &self.key_codec,
                values: &self.value_codec,
                page_offsets: &self.page_offsets,
                key_pages: &self.key_pages,
                value_pages: &self.value_pages,
                page_positions: &self.page_positions,
            }),
        }
    }

    pub fn query_view(&self) -> Queries<'_> {
        Queries {
            data: self.queries.elements(),
            batch: self.shape.batch,
            heads: self.shape.kv_heads * self.shape.group,
            tokens: self.shape.tokens,
            head_dim: self.shape.dim_k,
        }
    }

    pub fn cpu(&self) -> Attended {
        cpu::attend(&self.view(), &self.query_view(), &self.config).expect("attention")
    }

    pub fn gpu(&self) -> Attended {
        self.try_gpu().expect("attention")
    }

    pub fn try_gpu(&self) -> wgkv::Result<Attended> {
        self.gpu_on(support::context())
    }

    /// As [`Self::try_gpu`], on a device of its own.
    pub fn gpu_on(&self, context: &Context) -> wgkv::Result<Attended> {
        let upload = |bytes: &[u8]| context.upload("test", bytes).expect("a buffer");
        let words = |words: &[u32]| upload(bytemuck::cast_slice(words));
        let raw_offsets = words(&self.raw_offsets);
        let (keys, values) = (self.keys.elements(), self.values.elements());
        let (raw_keys, raw_values) = (upload(keys.bytes()), upload(values.bytes()));
        let positions = words(&self.positions);
        let queries = upload(self.queries.elements().bytes());
        let device = |codec: &Codec| DeviceCodec::new(context, codec.clone()).expect("a codec");
        let (key_codec, value_codec) = (device(&self.key_codec), device(&self.value_codec));
        let page_offsets = words(&self.page_offsets);
        let (key_pages, value_pages) = (words(&self.key_pages), words(&self.value_pages));
        let page_positions = words(&self.page_positions);
        let key_scales = self.key_scales.as_ref().map(|v| upload(bytemuck::cast_slice(v)));
        let causal = self.config.causal.is_some();
        let view = DeviceCacheView {
            kv_rows: self.shape.rows(),
            head_dim_k: self.shape.dim_k,
            head_dim_v: self.shape.dim_v,
            raw_tokens: self.positions.len(),
            key_dtype: keys.dtype(),
            value_dtype: values.dtype(),
            raw_offsets: Slice::all(&raw_offsets),
            raw_keys: Slice::all(&raw_keys),
            raw_values: Slice::all(&raw_values),
            raw_positions: causal.then_some(Slice::all(&positions)),
            packed: (!self.shape.pages.is_empty()).then_some(DevicePackedView {
                key_scales: key_scales.as_ref().map(Slice::all),
                keys: &key_codec,
                values: &value_codec,
                pages: self.page_positions.len() / self.shape.chunk,
                page_offsets: Slice::all(&page_offsets),
                key_pages: Slice::all(&key_pages),
                value_pages: Slice::all(&value_pages),
                page_positions: (causal || self.key_codec.rope().is_some())
                    .then_some(Slice::all(&page_positions)),
            }),
        };
        let queries = DeviceQueries {
            data: Slice::all(&queries),
            dtype: self.queries.elements().dtype(),
            batch: self.shape.batch,
            heads: self.shape.kv_heads * self.shape.group,
            tokens: self.shape.tokens,
            head_dim: self.shape.dim_k,
        };
        let (out, lse) = support::run_on(context, |rec| {
            let attended = gpu::attend(rec, &view, &queries, &self.config)?;
            let out = rec.read_back(Slice::all(&attended.out))?;
            Ok((out, rec.read_back(Slice::all(&attended.lse))?))
        })?;
        let floats = |bytes: Vec<u8>| bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
        Ok(Attended { out: floats(support::wait(out)), lse: floats(support::wait(lse)) })
    }

    pub fn run(&self, path: Path) -> Attended {
        match path {
            Path::Cpu => self.cpu(),
            Path::Gpu => self.gpu(),
        }
    }

    /// Holds both paths to the judge.
    pub fn judge_paths(&self, slack: f64) {
        for path in PATHS {
            println!("{path:?}");
            self.judge(&self.run(path), slack);
        }
    }

    /// Gives every row a key scale of factors from 1/2 to 2; to be called before [`Case::repack`].
    pub fn scale(&mut self, seed: u64) {
        let mut random = Random(seed);
        let count = self.shape.rows() * self.shape.dim_k;
        let factors = (0..count).map(|_| f16::from_f32((2.0 * random.uniform() - 1.0).exp2()));
        self.key_scales = Some(factors.collect());
    }

    /// Packs other rows in the place of the packed ones, by these schemes.
    pub fn repack(&mut self, schemes: [Scheme; 2], kinds: [Kind; 2], seed: u64) {
        self.repack_turned(schemes, kinds, seed, None);
    }

    /// As [`Self::repack`], with keys that have a rotary embedding.
    pub fn repack_turned(
        &mut self,
        schemes: [Scheme; 2],
        kinds: [Kind; 2],
        seed: u64,
        rope: Option<Rope>,
    ) {
        let mut random = Random(seed);
        let (shape, book) = (&self.shape, Codebook::builtin());
        let pages = shape.pages.iter().sum::<usize>();
        let starts: Vec<u32> = (0..pages).map(|p| (p * shape.chunk) as u32).collect();
        let row_of = |row: usize| std::iter::repeat_n(row as u32, shape.pages[row]);
        let of_page: Vec<u32> = (0..shape.pages.len()).flat_map(row_of).collect();
        let mut pack = |side: usize, dim| {
            let codec = Codec::with("data", dim, schemes[side], shape.chunk, book.clone());
            let rope = rope.clone().filter(|_| side == 0);
            let codec = codec.and_then(|codec| codec.with_rope(rope)).expect("a codec");
            let values = random.values(kinds[side], pages * shape.chunk, dim);
            let data = Data::new(shape.dtype, &values);
            let scales = self.key_scales.as_ref().filter(|_| side == 0);
            let scales = scales.map(|values| KeyScales { values, of_page: &of_page });
            let (data, at) = (data.elements(), &self.page_positions);
            let pages = encode_at(&codec, data, at, &starts, scales.as_ref());
            (codec, pages.expect("pages"))
        };
        let (keys, values) = (pack(0, shape.dim_k), pack(1, shape.dim_v));
        (self.key_codec, self.key_pages) = keys;
        (self.value_codec, self.value_pages) = values;
    }

    /// The rows as the judge reads and decodes them.
    pub fn decoded(&self) -> Rows {
        let (keys, values) = (widen(self.keys.elements()), widen(self.values.elements()));
        let mut rows = Rows::default();
        let chunk = self.shape.chunk;
        for row in 0..self.shape.rows() {
            let raw = self.raw_offsets[row] as usize..self.raw_offsets[row + 1] as usize;
            let pages = self.page_offsets[row] as usize..self.page_offsets[row + 1] as usize;
            let scale = self.key_scales.as_ref().map(|scales| -> Vec<f64> {
                let dim = self.shape.dim_k;
                scales[row * dim..(row + 1) * dim].iter().map(|v| v.to_f64()).collect()
            });
            let all = |flat: &[f64], codec: &Codec, words: &[u32], scale: Option<&[f64]>| {
                let layout = codec.layout();
                let dim = layout.head_dim();
                let book: Vec<f64> = codec.book().values().iter().map(|v| f64::from(*v)).collect();
                let rules = rules(codec);
                let mut out = flat[raw.start * dim..raw.end * dim].to_vec();
                for page in pages.clone() {
                    let at = &self.page_positions[page * chunk..(page + 1) * chunk];
                    let page = &words[page * layout.words()..(page + 1) * layout.words()];
                    let parts = judge::codec::unpack(&rules, page);
                    out.extend(judge::codec::decode(&rules, &parts, &book, scale, at));
                }
                out
            };
            rows.keys.push(all(&keys, &self.key_codec, &self.key_pages, scale.as_deref()));
            rows.values.push(all(&values, &self.value_codec, &self.value_pages, None));
            let mut positions = self.positions[raw].to_vec();
            positions.extend(&self.page_positions[pages.start * chunk..pages.end * chunk]);
            rows.positions.push(positions);
        }
        rows
    }

    /// Compares outputs with the judge's: see [`Ruled::judge`].
    pub fn judge(&self, got: &Attended, slack: f64) {
        let shape = &self.shape;
        let firsts = self.config.causal.map(|first| vec![first; shape.batch]);
        let ruled = Ruled {
            queries: widen(self.queries.elements()),
            batch: shape.batch,
            heads: shape.kv_heads * shape.group,
            tokens: shape.tokens,
            dims: [shape.dim_k, shape.dim_v],
            rows: self.decoded(),
            rules: Rules {
                scale: self.config.scale.map(f64::from),
                cap: self.config.soft_cap.map(f64::from),
                firsts: firsts.as_deref(),
                window: self.config.window.map(u64::from),
            },
        };
        ruled.judge(got, slack);
    }
}

/// What the judge reads.
pub struct Ruled<'a> {
    pub queries: Vec<f64>,
    pub batch: usize,
    pub heads: usize,
    pub tokens: usize,
    pub dims: [usize; 2],
    pub rows: Rows,
    pub rules: Rules<'a>,
}

impl Ruled<'_> {
    /// Compares outputs with the judge's, for each query within `slack` times what rounding of its
    /// logits and values can make: 2^-24 (16 + largest |q| |k| scale) times the largest value, and
    /// the same without the value for the logs.
    pub fn judge(&self, got: &Attended, slack: f64) {
        let [dim_k, dim_v] = self.dims;
        let (rows, queries) = (&self.rows, &self.queries);
        let (out, lse) = judge::attention::attend(
            queries,
            self.batch,
            self.heads,
            self.tokens,
            rows,
            dim_k,
            dim_v,
            &self.rules,
        );
        assert_eq!((got.out.len(), got.lse.len()), (out.len(), lse.len()));
        let scale = self.rules.scale.map_or((dim_k as f64).powf(-0.5), f64::abs);
        let per_row = self.batch * self.heads * self.tokens / rows.keys.len();
        let norm = |row: &[f64]| row.iter().map(|v| judge::tame(*v).powi(2)).sum::<f64>().sqrt();
        for (query, values) in queries.chunks(dim_k).enumerate() {
            let row = query / per_row;
            let longest = rows.keys[row].chunks(dim_k).map(norm).fold(0.0, f64::max);
            let largest =
                rows.values[row].iter().fold(0.0, |a: f64, v| a.max(judge::tame(*v).abs()));
            let unit = slack * (2f64.powi(-24) * (16.0 + norm(values) * longest * scale));
            let log = f64::from(got.lse[query]);
            let off = (log - lse[query]).abs();
            assert!(
                off <= unit.max(lse[query].abs() * 1e-6),
                "lse of query {query}: {log} against {}",
                lse[query]
            );
            for channel in 0..dim_v {
                let at = query * dim_v + channel;
                let off = (f64::from(got.out[at]) - out[at]).abs();
                assert!(
                    off <= unit.min(2.0) * largest + LOST,
                    "query {query} channel {channel}: {} against {}, off by {} units",
                    got.out[at],
                    out[at],
                    off / (unit * largest) * slack
                );
            }
        }
    }
}
