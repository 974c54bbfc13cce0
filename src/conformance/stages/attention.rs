//! Attention to rows side by side, on both paths against the judge.

use half::f16;

use super::nsnquant::{NAMED, book, rules, scheme};
use crate::attention::cpu::{Attended, attend};
use crate::attention::gpu::{self, DeviceCacheView, DevicePackedView, DeviceQueries};
use crate::attention::{AttendConfig, CacheView, PackedView, Queries};
use crate::conformance::draw::{DTYPES, Data, Random};
use crate::conformance::run::{Job, Run};
use crate::error::Result;
use crate::gpu::Slice;
use crate::judge::attention::{Rows, Rules};
use crate::judge::{self, widen};
use crate::layout::{Bits, Family, Profile, Scheme};
use crate::nsnquant::cpu::encode_at;
use crate::nsnquant::gpu::DeviceCodec;
use crate::nsnquant::{Codebook, Codec, KeyScales, Pairing, Rope};
use crate::primitives::cpu::scan::offsets;
use crate::shape::Dtype;

/// Times the rounding of logits and values that an answer may be off.
pub(super) const SLACK: f64 = 2.0;
/// The same where keys are packed under key scales, which multiply that of a channel.
pub(super) const SCALED_SLACK: f64 = 8.0;
/// Weights carry a factor of 2^-20, so what lies below this may be lost.
const LOST: f64 = 1e-30;

/// What the values of a tensor are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Normal,
    Offset,
    Constant(f32),
    Scaled(f32),
    /// Now and then NaN or an infinity.
    Holes,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Normal,
        Self::Offset,
        Self::Constant(0.5),
        Self::Constant(0.0),
        Self::Scaled(1e-5),
        Self::Scaled(100.0),
        Self::Holes,
    ];

    pub fn values(self, random: &mut Random, rows: usize, dim: usize) -> Vec<f32> {
        let offsets: Vec<f32> = (0..dim).map(|_| 3.0 * random.normal()).collect();
        let value = |at: usize| match self {
            Self::Normal => random.normal(),
            Self::Offset => offsets[at % dim] + random.normal(),
            Self::Constant(value) => value,
            Self::Scaled(factor) => factor * random.normal(),
            Self::Holes => match random.below(200) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                _ => random.normal(),
            },
        };
        (0..rows * dim).map(value).collect()
    }
}

/// Shape of a cache and of the queries on it.
#[derive(Clone, Debug)]
struct Shape {
    batch: usize,
    kv_heads: usize,
    group: usize,
    tokens: usize,
    dims: [usize; 2],
    /// Raw tokens of each row.
    raw: Vec<usize>,
    /// Pages of each row; empty: nothing is packed.
    pages: Vec<usize>,
    chunk: usize,
    schemes: [Scheme; 2],
    dtype: Dtype,
    kinds: [Kind; 3],
    scaled: bool,
    rope: Option<Rope>,
}

/// A cache and queries.
struct Cache {
    shape: Shape,
    queries: Data,
    raw_offsets: Vec<u32>,
    keys: Data,
    values: Data,
    positions: Vec<u32>,
    codecs: [Codec; 2],
    page_offsets: Vec<u32>,
    pages: [Vec<u32>; 2],
    page_positions: Vec<u32>,
    key_scales: Option<Vec<f16>>,
    config: AttendConfig,
}

impl Cache {
    /// Random content. Positions are a shuffle of all tokens of the row.
    fn new(shape: Shape, random: &mut Random) -> Result<Self> {
        let rows = shape.batch * shape.kv_heads;
        let pages: Vec<usize> = (0..rows).map(|r| *shape.pages.get(r).unwrap_or(&0)).collect();
        let counts = |list: &[usize]| list.iter().map(|n| *n as u32).collect::<Vec<_>>();
        let raw_offsets = offsets("raw", &counts(&shape.raw))?;
        let page_offsets = offsets("pages", &counts(&pages))?;
        let (raw, packed) = (shape.raw.iter().sum::<usize>(), pages.iter().sum::<usize>());
        let [query_kind, key_kind, value_kind] = shape.kinds;
        let query_rows = rows * shape.group * shape.tokens;
        let [dim_k, dim_v] = shape.dims;
        let queries = query_kind.values(random, query_rows, dim_k);
        let keys = key_kind.values(random, raw, dim_k);
        let values = value_kind.values(random, raw, dim_v);
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
        let factor = |random: &mut Random| f16::from_f32((2.0 * random.unit() - 1.0).exp2());
        let key_scales: Option<Vec<f16>> =
            shape.scaled.then(|| (0..rows * dim_k).map(|_| factor(random)).collect());
        let starts: Vec<u32> = (0..packed).map(|page| (page * shape.chunk) as u32).collect();
        let row_of = |row: usize| std::iter::repeat_n(row as u32, pages[row]);
        let of_page: Vec<u32> = (0..rows).flat_map(row_of).collect();
        let mut pack = |side: usize, kind: Kind| -> Result<(Codec, Vec<u32>)> {
            let (dim, book) = (shape.dims[side], Codebook::builtin());
            let codec = Codec::with("data", dim, shape.schemes[side], shape.chunk, book)?;
            let codec = codec.with_rope(shape.rope.clone().filter(|_| side == 0))?;
            let data = Data::new(&kind.values(random, packed * shape.chunk, dim), shape.dtype);
            let scales = key_scales.as_ref().filter(|_| side == 0);
            let scales = scales.map(|values| KeyScales { values, of_page: &of_page });
            if packed == 0 {
                return Ok((codec, Vec::new()));
            }
            let pages = encode_at(&codec, data.view(), &page_positions, &starts, scales.as_ref())?;
            Ok((codec, pages))
        };
        let (keys_of, values_of) = (pack(0, key_kind)?, pack(1, value_kind)?);
        Ok(Self {
            queries: Data::new(&queries, shape.dtype),
            keys: Data::new(&keys, shape.dtype),
            values: Data::new(&values, shape.dtype),
            raw_offsets,
            positions,
            codecs: [keys_of.0, values_of.0],
            page_offsets,
            pages: [keys_of.1, values_of.1],
            page_positions,
            key_scales,
            config: AttendConfig::default(),
            shape,
        })
    }

    fn rows(&self) -> usize {
        self.shape.batch * self.shape.kv_heads
    }

    fn on_cpu(&self) -> Result<Attended> {
        let view = CacheView {
            kv_rows: self.rows(),
            head_dim_k: self.shape.dims[0],
            head_dim_v: self.shape.dims[1],
            raw_offsets: &self.raw_offsets,
            raw_keys: self.keys.view(),
            raw_values: self.values.view(),
            raw_positions: &self.positions,
            packed: (!self.shape.pages.is_empty()).then_some(PackedView {
                key_scales: self.key_scales.as_deref(),
                keys: &self.codecs[0],
                values: &self.codecs[1],
                page_offsets: &self.page_offsets,
                key_pages: &self.pages[0],
                value_pages: &self.pages[1],
                page_positions: &self.page_positions,
            }),
        };
        let queries = Queries {
            data: self.queries.view(),
            batch: self.shape.batch,
            heads: self.shape.kv_heads * self.shape.group,
            tokens: self.shape.tokens,
            head_dim: self.shape.dims[0],
        };
        attend(&view, &queries, &self.config)
    }

    async fn on_gpu(&self, run: &Run<'_>) -> Result<Attended> {
        let shape = &self.shape;
        let lists = [
            run.upload(&self.raw_offsets)?,
            run.upload(&self.positions)?,
            run.upload(&self.page_offsets)?,
            run.upload(&self.page_positions)?,
        ];
        let data = [
            run.upload(self.keys.view().bytes())?,
            run.upload(self.values.view().bytes())?,
            run.upload(self.queries.view().bytes())?,
        ];
        let pages = [run.upload(&self.pages[0])?, run.upload(&self.pages[1])?];
        let device = |side: usize| DeviceCodec::new(run.context, self.codecs[side].clone());
        let codecs = [device(0)?, device(1)?];
        let scales = self.key_scales.as_ref().map(|values| run.upload(values)).transpose()?;
        let causal = self.config.causal.is_some();
        let turned = causal || shape.rope.is_some();
        let [raw_offsets, positions, page_offsets, page_positions] =
            lists.each_ref().map(Slice::all);
        let [keys, values, queries] = data.each_ref().map(Slice::all);
        let [key_pages, value_pages] = pages.each_ref().map(Slice::all);
        let dtype = shape.dtype;
        let view = DeviceCacheView {
            kv_rows: self.rows(),
            head_dim_k: shape.dims[0],
            head_dim_v: shape.dims[1],
            raw_tokens: self.positions.len(),
            key_dtype: dtype,
            value_dtype: dtype,
            raw_offsets,
            raw_keys: keys,
            raw_values: values,
            raw_positions: causal.then_some(positions),
            packed: (!shape.pages.is_empty()).then_some(DevicePackedView {
                key_scales: scales.as_ref().map(Slice::all),
                keys: &codecs[0],
                values: &codecs[1],
                pages: self.page_positions.len() / shape.chunk,
                page_offsets,
                key_pages,
                value_pages,
                page_positions: turned.then_some(page_positions),
            }),
        };
        let heads = shape.kv_heads * shape.group;
        let (batch, tokens, head_dim) = (shape.batch, shape.tokens, shape.dims[0]);
        let asked = DeviceQueries { data: queries, dtype, batch, heads, tokens, head_dim };
        let attended = run.record(|rec| gpu::attend(rec, &view, &asked, &self.config))?;
        let count = batch * heads * tokens;
        Ok(Attended {
            out: run.read(&attended.out, count * shape.dims[1]).await?,
            lse: run.read(&attended.lse, count).await?,
        })
    }

    /// The rows as the judge reads and decodes them.
    fn decoded(&self) -> Rows {
        let flat = [widen(self.keys.view()), widen(self.values.view())];
        let mut rows = Rows::default();
        let chunk = self.shape.chunk;
        for row in 0..self.rows() {
            let raw = self.raw_offsets[row] as usize..self.raw_offsets[row + 1] as usize;
            let pages = self.page_offsets[row] as usize..self.page_offsets[row + 1] as usize;
            let scale = self.key_scales.as_ref().map(|scales| -> Vec<f64> {
                let dim = self.shape.dims[0];
                scales[row * dim..(row + 1) * dim].iter().map(|v| v.to_f64()).collect()
            });
            let all = |side: usize| {
                let (codec, dim) = (&self.codecs[side], self.shape.dims[side]);
                let scale = scale.as_deref().filter(|_| side == 0);
                let mut out = flat[side][raw.start * dim..raw.end * dim].to_vec();
                for page in pages.clone() {
                    let at = &self.page_positions[page * chunk..(page + 1) * chunk];
                    let words = codec.layout().words();
                    let page = &self.pages[side][page * words..(page + 1) * words];
                    out.extend(decoded(codec, page, scale, at));
                }
                out
            };
            rows.keys.push(all(0));
            rows.values.push(all(1));
            let mut positions = self.positions[raw.clone()].to_vec();
            positions.extend(&self.page_positions[pages.start * chunk..pages.end * chunk]);
            rows.positions.push(positions);
        }
        rows
    }

    /// Holds both paths to the judge.
    async fn judge(&self, run: &mut Run<'_>) -> Result<()> {
        let shape = &self.shape;
        let firsts = self.config.causal.map(|first| vec![first; shape.batch]);
        let ruled = Ruled {
            queries: widen(self.queries.view()),
            batch: shape.batch,
            heads: shape.kv_heads * shape.group,
            tokens: shape.tokens,
            dims: shape.dims,
            rows: self.decoded(),
            rules: Rules {
                scale: self.config.scale.map(f64::from),
                cap: self.config.soft_cap.map(f64::from),
                firsts: firsts.as_deref(),
                window: self.config.window.map(u64::from),
            },
        };
        let slack = if shape.scaled { SCALED_SLACK } else { SLACK };
        let got = self.on_gpu(run).await?;
        ruled.judge(run, "GPU", &got, slack);
        ruled.judge(run, "CPU", &self.on_cpu()?, slack);
        Ok(())
    }
}

/// A page as the judge decodes it.
pub(super) fn decoded(
    codec: &Codec,
    page: &[u32],
    scale: Option<&[f64]>,
    positions: &[u32],
) -> Vec<f64> {
    let rules = rules(codec);
    judge::codec::decode(
        &rules,
        &judge::codec::unpack(&rules, page),
        &book(codec),
        scale,
        positions,
    )
}

/// What the judge reads.
pub(super) struct Ruled<'a> {
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
    pub fn judge(&self, run: &mut Run<'_>, path: &str, got: &Attended, slack: f64) {
        let [dim_k, dim_v] = self.dims;
        let (rows, queries) = (&self.rows, &self.queries);
        let shape = (self.batch, self.heads, self.tokens);
        let (batch, heads, tokens) = shape;
        let (out, lse) = judge::attention::attend(
            queries,
            batch,
            heads,
            tokens,
            rows,
            dim_k,
            dim_v,
            &self.rules,
        );
        let scale = self.rules.scale.map_or((dim_k as f64).powf(-0.5), f64::abs);
        let per_row = batch * heads * tokens / rows.keys.len();
        let norm = |row: &[f64]| row.iter().map(|v| judge::tame(*v).powi(2)).sum::<f64>().sqrt();
        let [of_lse, of_out] = ["lse", "output"].map(|what| format!("{what} of the {path}"));
        for (query, values) in queries.chunks(dim_k).enumerate() {
            let row = query / per_row;
            let longest = rows.keys[row].chunks(dim_k).map(norm).fold(0.0, f64::max);
            let largest =
                rows.values[row].iter().fold(0.0, |a: f64, v| a.max(judge::tame(*v).abs()));
            let unit = slack * (2f64.powi(-24) * (16.0 + norm(values) * longest * scale));
            let allowed = unit.max(lse[query].abs() * 1e-6);
            run.checks.near(&of_lse, query, f64::from(got.lse[query]), lse[query], allowed);
            let allowed = unit.min(2.0) * largest + LOST;
            for at in query * dim_v..(query + 1) * dim_v {
                run.checks.near(&of_out, at, f64::from(got.out[at]), out[at], allowed);
            }
        }
    }
}

/// Queries, keys and values in which nothing is hidden by what is large or constant.
pub(super) const TELLING: [Kind; 3] = [Kind::Normal, Kind::Offset, Kind::Normal];

/// Head dimensions that every type and every profile is covered at.
pub(super) const WIDE: [usize; 4] = [64, 80, 128, 256];
/// All the others.
pub(super) const OTHERS: [usize; 16] =
    [8, 16, 24, 32, 40, 48, 56, 96, 112, 160, 192, 224, 320, 384, 448, 512];
/// More that covering cases go through, with their chunks: the default, with signs too, and chunks that
/// workgroups take one or many of.
const MORE: [([Scheme; 2], usize, usize); 5] = [
    (Profile::Tuned.schemes(Bits::Three, Bits::Two, None), 128, 64),
    (Profile::Tuned.schemes(Bits::Two, Bits::Two, None), 128, 2),
    (Profile::Tuned.schemes(Bits::Two, Bits::Two, None), 128, 1024),
    (Profile::Tuned.schemes(Bits::Three, Bits::Two, Some(7)), 64, 64),
    (Profile::Compat.schemes(Bits::Two, Bits::Two, Some(9)), 80, 64),
];

/// What a covering case of packed rows is about.
pub(super) struct Covered {
    pub schemes: [Scheme; 2],
    pub dim: usize,
    pub chunk: Option<usize>,
    /// Queries of a KV row, where kernels for different numbers of them are built.
    pub queries: Option<usize>,
}

impl Covered {
    pub fn new(number: usize) -> Self {
        let rest = number - number.min(NAMED.len() * WIDE.len());
        let (profile, bits) = NAMED[number % NAMED.len()];
        let other = OTHERS[rest.saturating_sub(MORE.len()) % OTHERS.len()];
        let (schemes, dim, chunk) = match (WIDE.get(number / NAMED.len()), MORE.get(rest)) {
            (Some(dim), _) => (profile.schemes(bits, bits, None), *dim, None),
            (None, Some((schemes, dim, chunk))) => (*schemes, *dim, Some(*chunk)),
            // Every second is of the unit books, which go to another kernel.
            _ if number.is_multiple_of(2) => (MORE[0].0, other, None),
            _ => (Profile::Compat.schemes(Bits::Two, Bits::Two, None), other, None),
        };
        let plain = schemes[0].family == Family::Plain;
        let queries = plain.then(|| [1, 2, 4][(number + number / NAMED.len()) % 3]);
        Self { schemes, dim, chunk, queries }
    }
}

/// The head dimension of a covering case of raw rows: `WIDE` at each of so many types, then the others.
pub(super) fn raw_dim(run: &Run<'_>, types: usize) -> usize {
    let number = run.number().unwrap_or(0);
    let others = OTHERS[number.saturating_sub(types * WIDE.len()) % OTHERS.len()];
    WIDE.get(number / types).copied().unwrap_or(others)
}

/// A cache of random shape, with packed rows or without.
fn shape(run: &mut Run<'_>, packed: bool) -> Shape {
    let dims = [0; 2].map(|_| run.random.pick(&[32usize, 64, 80, 128]));
    let dtype = run.random.pick(&DTYPES);
    let kinds = [0; 3].map(|_| run.random.pick(&Kind::ALL));
    let (batch, kv_heads) = (run.count(1, 3), run.count(1, 3));
    let (group, tokens) = (run.count(1, 5), run.count(1, 3));
    let most = if run.random.odds(7) { 1500 } else { 150 };
    let rows = batch * kv_heads;
    let raw = (0..rows).map(|_| run.count(0, most)).collect();
    let pages = (0..if packed { rows } else { 0 }).map(|_| run.count(0, 3)).collect();
    let chunk = run.random.pick(&[2usize, 5, 16, 33, 64, 128]);
    let schemes = [0; 2].map(|_| scheme(&mut run.random));
    let scaled = packed && run.random.odds(3);
    Shape {
        batch,
        kv_heads,
        group,
        tokens,
        dims,
        raw,
        pages,
        chunk,
        schemes,
        dtype,
        kinds,
        scaled,
        rope: None,
    }
}

/// Masks and caps as they come.
fn config(run: &mut Run<'_>) -> AttendConfig {
    let causal = run.random.odds(2).then(|| run.random.below(300) as u32);
    let window = causal.and_then(|_| run.random.odds(3).then(|| run.random.between(1, 99) as u32));
    let soft_cap = run.random.odds(4).then(|| run.random.pick(&[0.7, 30.0]));
    AttendConfig { scale: None, causal, soft_cap, window }
}

pub(super) const RAW_COVERS: usize = WIDE.len() * DTYPES.len() + OTHERS.len();

pub(super) fn raw<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, false);
        if run.covers() {
            shape.dtype = run.cover(&DTYPES);
            shape.dims = [raw_dim(run, DTYPES.len()); 2];
            shape.kinds = TELLING;
        }
        let mut cache = Cache::new(shape, &mut run.random)?;
        cache.config = config(run);
        cache.judge(run).await
    })
}

pub(super) const PACKED_COVERS: usize = NAMED.len() * WIDE.len() + MORE.len() + OTHERS.len();

pub(super) fn packed<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, true);
        if let Some(covered) = run.number().map(Covered::new) {
            shape.schemes = covered.schemes;
            shape.dims = [covered.dim; 2];
            shape.chunk = covered.chunk.unwrap_or(shape.chunk);
            if let Some(queries) = covered.queries {
                (shape.group, shape.tokens) = (queries, 1);
            }
            shape.pages.iter_mut().for_each(|pages| *pages = 1);
            shape.kinds = TELLING;
        }
        let mut cache = Cache::new(shape, &mut run.random)?;
        cache.config = config(run);
        cache.judge(run).await
    })
}

/// Head dimensions that keys with a rotary embedding are covered at, one of each kind of kernel, where
/// they are not drawn.
pub(super) const ROPE_DIMS: [Option<usize>; 6] =
    [None, None, Some(8), Some(80), Some(448), Some(512)];

pub(super) fn rope<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut shape = shape(run, true);
        let pairing = run.cover(&Pairing::ALL);
        if let Some(dim) = run.number().and_then(|number| ROPE_DIMS.get(number)) {
            shape.dims = dim.map_or(shape.dims, |dim| [dim; 2]);
        }
        shape.pages.iter_mut().for_each(|pages| *pages = (*pages).max(1));
        shape.rope = Some(Rope::with_theta(pairing, 1e4, shape.dims[0] / 2)?);
        let mut cache = Cache::new(shape, &mut run.random)?;
        cache.config = config(run);
        cache.judge(run).await
    })
}

/// A row of one head.
fn simple(run: &mut Run<'_>, dim: usize, raw: usize, pages: usize, chunk: usize) -> Shape {
    let (profile, bits) = run.random.pick(&NAMED);
    Shape {
        batch: 1,
        kv_heads: 1,
        group: 1,
        tokens: 1,
        dims: [dim; 2],
        raw: vec![raw],
        pages: if pages > 0 { vec![pages] } else { Vec::new() },
        chunk,
        schemes: [profile.scheme(bits); 2],
        dtype: run.random.pick(&DTYPES),
        kinds: [Kind::Normal; 3],
        scaled: false,
        rope: None,
    }
}

/// Keys of no weight of their own, so that every answer counts them: none is skipped or read twice,
/// however a row is split.
pub(super) fn merge<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let edge = run.random.pick(&[32usize, 64, 96, 128, 192, 256, 512, 1024, 4096]);
        let raw = run.count(1, edge + 1);
        let (chunk, pages) = run.random.pick(&[(64, 0), (2, 130), (31, 20), (33, 17), (64, 9)]);
        let mut shape = simple(run, 64, raw, pages, chunk);
        shape.tokens = run.random.pick(&[1, 1, 5]);
        shape.kinds = [Kind::Normal, Kind::Constant(0.0), Kind::Constant(1.0)];
        let mut cache = Cache::new(shape, &mut run.random)?;
        let mut counts = vec![0.0; raw * 64];
        for (token, row) in counts.chunks_exact_mut(64).enumerate() {
            row[0] = 1.0;
            row[1 + token % 63] = 1.0;
        }
        cache.values = Data::new(&counts, cache.shape.dtype);
        let n = (raw + pages * chunk) as f64;
        let got = cache.on_gpu(run).await?;
        for (at, lse) in got.lse.iter().enumerate() {
            run.checks.near("keys counted", at, f64::from(*lse).exp(), n, 2e-6 * n);
        }
        for (at, value) in got.out.iter().enumerate().filter(|_| pages == 0) {
            let channel = at % 64;
            let count = if channel == 0 { raw } else { (raw + 63 - channel) / 63 };
            run.checks.near("values counted", at, f64::from(*value) * n, count as f64, 1e-3);
        }
        cache.judge(run).await
    })
}

/// Queries and keys at the ends of the range, and any finite scale.
pub(super) fn rotate<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (raw, pages) = (run.count(3, 100), run.random.below(3));
        let dim = run.random.pick(&[64usize, 80, 128]);
        let mut shape = simple(run, dim, raw, pages, 16);
        (shape.group, shape.tokens) = (run.count(1, 4), run.count(1, 4));
        let factor = run.random.pick(&[1e-30f32, 1e-7, 1e3, 1e20]);
        if shape.dtype != Dtype::F16 {
            let other = Kind::Scaled(1.0 / factor);
            let side = run.random.below(2);
            shape.kinds = [Kind::Normal, other, Kind::Normal];
            shape.kinds[side] = Kind::Scaled(factor);
            shape.kinds[1 - side] = other;
        }
        let mut cache = Cache::new(shape, &mut run.random)?;
        let scale = run.random.pick(&[0.0, -0.3, 1.0, 1e-20]);
        cache.config.scale = run.random.odds(2).then_some(scale);
        cache.judge(run).await
    })
}
