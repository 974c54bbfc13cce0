//! Layer caches: how tokens are batched does not matter, chunks never change, forks share.

use half::f16;
use proptest::prelude::*;
use wgkv::Error;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::attention::{self, AttendConfig, Queries};
use wgkv::cache::{CacheConfig, Counters, Frontier, cpu, gpu};
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::layout::{Bits, Profile};
use wgkv::nsnquant::{Codebook, Rope};
use wgkv::shape::{Dtype, Elements, Tensor};

use crate::support;

/// Keys and values of `rows` rows, in the order in which tokens come.
pub struct Stream {
    rows: usize,
    dims: [usize; 2],
    len: usize,
    data: [Vec<f16>; 2],
}

impl Stream {
    pub fn new(rows: usize, dims: [usize; 2], len: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            let mut sum = 0.0f32;
            for _ in 0..4 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                sum += (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            }
            sum
        };
        let data = dims.map(|d| {
            (0..rows * len)
                .flat_map(|_| {
                    let scale = (2.0 * next()).exp2();
                    (0..d).map(|_| f16::from_f32(scale * next())).collect::<Vec<_>>()
                })
                .collect()
        });
        Self { rows, dims, len, data }
    }

    /// A stream of given keys and values, `[rows, len, d]`.
    pub fn of(rows: usize, dims: [usize; 2], len: usize, data: [Vec<f16>; 2]) -> Self {
        Self { rows, dims, len, data }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Tokens `first..first + n` of keys (0) or values (1), `[rows, n, d]`.
    pub fn part(&self, side: usize, first: usize, n: usize) -> Vec<f16> {
        let d = self.dims[side];
        (0..self.rows)
            .flat_map(|row| {
                let at = (row * self.len + first) * d;
                self.data[side][at..at + n * d].iter().copied()
            })
            .collect()
    }
}

pub fn config(stream: &Stream, chunk: usize, sinks: usize, recent: usize) -> CacheConfig {
    CacheConfig {
        profile: wgkv::layout::Profile::Compat,
        key_scale: false,
        rope: None,
        signs: None,
        rows: stream.rows,
        head_dim_k: stream.dims[0],
        head_dim_v: stream.dims[1],
        k_bits: Bits::Two,
        v_bits: Bits::One,
        chunk,
        sinks,
        recent,
        dtype: Dtype::F16,
        codebook: Codebook::builtin(),
    }
}

/// The same by the profile paper, keys having a rotary embedding, where `turned` says so.
fn paper(config: CacheConfig, turned: bool) -> CacheConfig {
    let rope = turned.then(|| Rope::theta(1e4, config.head_dim_k).unwrap());
    let profile = if turned { Profile::Paper } else { config.profile };
    CacheConfig { profile, rope, ..config }
}

/// One cache on either path.
pub enum Cache {
    Host(cpu::LayerCache),
    Device(gpu::LayerCache),
}

/// What a cache shows: keys and values as bits, and counters.
pub type Shown = (Vec<u16>, Vec<u16>, Counters);

impl Cache {
    pub fn both(config: &CacheConfig) -> [Self; 2] {
        [
            Self::Host(cpu::LayerCache::new(config.clone()).unwrap()),
            Self::Device(gpu::LayerCache::new(support::context(), config.clone()).unwrap()),
        ]
    }

    pub fn append(&mut self, stream: &Stream, first: usize, n: usize) {
        if n == 0 {
            return;
        }
        let [keys, values] = [0, 1].map(|side| stream.part(side, first, n));
        let [dk, dv] = stream.dims;
        match self {
            Self::Host(cache) => {
                let tensor =
                    |data, d| Tensor::new("t", Elements::F16(data), stream.rows, n, d).unwrap();
                cache.append(&tensor(&keys, dk), &tensor(&values, dv)).unwrap();
            }
            Self::Device(cache) => {
                let context = support::context();
                let [keys, values] =
                    [keys, values].map(|x| context.upload("t", bytemuck::cast_slice(&x)).unwrap());
                let tensor = |buffer, d| {
                    DeviceTensor::new("t", Slice::all(buffer), Dtype::F16, stream.rows, n, d)
                        .unwrap()
                };
                let (keys, values) = (tensor(&keys, dk), tensor(&values, dv));
                support::run(|rec| cache.append(rec, &keys, &values)).unwrap();
            }
        }
    }

    pub fn trim(&mut self, n: usize) -> wgkv::Result<()> {
        match self {
            Self::Host(cache) => cache.trim(n),
            Self::Device(cache) => support::run(|rec| cache.trim(rec, n)),
        }
    }

    pub fn fork(&self) -> Self {
        match self {
            Self::Host(cache) => Self::Host(cache.fork()),
            Self::Device(cache) => Self::Device(cache.fork()),
        }
    }

    pub fn frontier(&self) -> Frontier {
        match self {
            Self::Host(cache) => *cache.frontier(),
            Self::Device(cache) => *cache.frontier(),
        }
    }

    pub fn counters(&self) -> Counters {
        match self {
            Self::Host(cache) => cache.counters(),
            Self::Device(cache) => cache.counters(),
        }
    }

    /// Outputs and logs for queries `[batch, heads, tokens, d]`.
    pub fn attend(
        &self,
        queries: &[f16],
        batch: usize,
        heads: usize,
        tokens: usize,
        settings: &AttendConfig,
    ) -> (Vec<f32>, Vec<f32>) {
        match self {
            Self::Host(cache) => {
                let head_dim = cache.config().head_dim_k;
                let data = Elements::F16(queries);
                let queries = Queries { data, batch, heads, tokens, head_dim };
                let flat = cache.flat();
                let attended = attention::cpu::attend(&flat.view(), &queries, settings).unwrap();
                (attended.out, attended.lse)
            }
            Self::Device(cache) => {
                let head_dim = cache.config().head_dim_k;
                let data = support::context().upload("q", bytemuck::cast_slice(queries)).unwrap();
                let data = Slice::all(&data);
                let dtype = Dtype::F16;
                let queries = DeviceQueries { data, dtype, batch, heads, tokens, head_dim };
                let attended = support::run(|rec| {
                    let flat = cache.flat(rec)?;
                    attention::gpu::attend(rec, &flat.view(), &queries, settings)
                })
                .unwrap();
                (support::download_as(&attended.out), support::download_as(&attended.lse))
            }
        }
    }

    pub fn show(&self) -> Shown {
        match self {
            Self::Host(cache) => {
                let fetched = cache.fetch().unwrap();
                (bits(&fetched.keys), bits(&fetched.values), cache.counters())
            }
            Self::Device(cache) => {
                let fetched = support::run(|rec| cache.fetch(rec)).unwrap();
                let config = cache.config();
                let [keys, values] =
                    [(&fetched.keys, config.head_dim_k), (&fetched.values, config.head_dim_v)].map(
                        |(buffer, d)| {
                            let mut got = support::download_as::<u16>(buffer);
                            got.truncate(config.rows * fetched.len * d);
                            got
                        },
                    );
                (keys, values, cache.counters())
            }
        }
    }
}

/// The elements as bits.
pub fn bits(elements: &[f16]) -> Vec<u16> {
    elements.iter().map(|x| x.to_bits()).collect()
}

/// Checks that token rows agree to rounding, but for a few whose codes fell on the other side of a
/// near tie.
pub fn close(ours: &[u16], theirs: &[u16], head_dim: usize) {
    assert_eq!(ours.len(), theirs.len());
    let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let float = |x: &[u16]| x.iter().map(|x| f16::from_bits(*x).to_f32()).collect::<Vec<f32>>();
    let mut far = 0;
    for (a, b) in ours.chunks(head_dim).zip(theirs.chunks(head_dim)) {
        let (a, b) = (float(a), float(b));
        let error = norm(&a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<_>>());
        assert!(error <= 0.8 * norm(&b) + 1e-6, "{error} of {}", norm(&b));
        far += usize::from(error > 4e-3 * norm(&b) + 1e-6);
    }
    let rows = ours.len() / head_dim;
    assert!(far <= 1 + rows / 100, "{far} of {rows} token rows differ");
}

/// Rows `positions` of what is shown, of `len` tokens a row.
pub fn rows_at(shown: &[u16], rows: usize, len: usize, positions: &[usize]) -> Vec<u16> {
    let d = shown.len() / (rows * len).max(1);
    (0..rows)
        .flat_map(|row| positions.iter().map(move |p| (row * len + p) * d))
        .flat_map(|at| shown[at..at + d].iter().copied())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn batching_does_not_matter(
        rows in 1usize..4, dk in prop::sample::select(vec![16usize, 64, 80]),
        dv in prop::sample::select(vec![32usize, 96, 112]), chunk in prop::sample::select(vec![3usize, 16, 31]),
        sinks in 0usize..5, recent in prop::sample::select(vec![0usize, 1, 17]),
        parts in prop::collection::vec(1usize..40, 1..6), key_scale in any::<bool>(),
        seed in any::<u64>(), turned in any::<bool>(), signs in prop::option::of(Just(7u32)),
    ) {
        let total = parts.iter().sum();
        let stream = Stream::new(rows, [dk, dv], total, seed);
        let config = CacheConfig { key_scale, signs, ..config(&stream, chunk, sinks, recent) };
        let config = paper(config, turned);
        for (once, mut stepwise) in Cache::both(&config).into_iter().zip(Cache::both(&config)) {
            let mut first = 0;
            for &part in &parts {
                stepwise.append(&stream, first, part);
                first += part;
                let mut whole = once.fork();
                whole.append(&stream, 0, first);
                let (ours, theirs) = (stepwise.show(), whole.show());
                prop_assert_eq!((&ours.0, &ours.1), (&theirs.0, &theirs.1));
                let device_bytes = ours.2.device_bytes;
                prop_assert_eq!(ours.2, Counters { device_bytes, ..theirs.2 });
            }
        }
    }

    #[test]
    fn device_equals_host(
        rows in 1usize..4, dk in prop::sample::select(vec![16usize, 64, 80, 128]),
        dv in prop::sample::select(vec![64usize, 112]), sinks in 0usize..5, recent in 0usize..20,
        ops in prop::collection::vec((0usize..60, any::<bool>()), 1..8), key_scale in any::<bool>(),
        seed in any::<u64>(), turned in any::<bool>(), signs in prop::option::of(Just(7u32)),
    ) {
        let total = ops.iter().map(|(n, _)| n).sum::<usize>();
        let stream = Stream::new(rows, [dk, dv], total, seed);
        let config = CacheConfig { key_scale, signs, ..config(&stream, 16, sinks, recent) };
        let config = paper(config, turned);
        let [mut host, mut device] = Cache::both(&config);
        let mut read = 0;
        // Where each token came from; none once it has been through a chunk.
        let mut origin: Vec<Option<usize>> = Vec::new();
        for (n, trim) in ops {
            let n = if trim { n.min(origin.len()) } else { n };
            for cache in [&mut host, &mut device] {
                if trim { cache.trim(n).unwrap() } else { cache.append(&stream, read, n) }
            }
            if trim {
                origin.truncate(origin.len() - n);
            } else {
                origin.extend((read..read + n).map(Some));
                read += n;
            }
            let frontier = host.frontier();
            for chunk in 0..frontier.chunks() {
                let start = frontier.chunk_start(chunk);
                origin[start..start + frontier.chunk()].fill(None);
            }
            let (ours, theirs) = (device.show(), host.show());
            prop_assert_eq!(ours.2, theirs.2);
            let raw: Vec<usize> = frontier.raw_positions().filter(|p| origin[*p].is_some()).collect();
            let came: Vec<usize> = raw.iter().filter_map(|p| origin[*p]).collect();
            for (side, shown, other) in [(0, &ours.0, &theirs.0), (1, &ours.1, &theirs.1)] {
                let expected = rows_at(&bits(&stream.data[side]), rows, total, &came);
                prop_assert_eq!(&rows_at(shown, rows, origin.len(), &raw), &expected);
                prop_assert_eq!(&rows_at(other, rows, origin.len(), &raw), &expected);
                close(shown, other, stream.dims[side]);
            }
        }
    }
}

#[test]
fn raw_rows_keep_their_bits_and_chunks_never_change() {
    let stream = Stream::new(2, [64, 80], 200, 3);
    for mut cache in Cache::both(&config(&stream, 16, 4, 7)) {
        let mut packed: Option<(usize, Shown)> = None;
        for (first, n) in [(0, 30), (30, 1), (31, 69), (100, 16), (116, 84)] {
            cache.append(&stream, first, n);
            let shown = cache.show();
            let (len, behind) = (shown.2.len, shown.2.quantized_tokens);
            assert_eq!(behind, 16 * ((len - 11) / 16));
            let raw: Vec<usize> = (0..4).chain(4 + behind..len).collect();
            for (side, got) in [(0, &shown.0), (1, &shown.1)] {
                let came = bits(&stream.part(side, 0, len));
                assert_eq!(rows_at(got, 2, len, &raw), rows_at(&came, 2, len, &raw));
            }
            if let Some((before, old)) = &packed {
                let old_chunks: Vec<usize> = (4..4 + old.2.quantized_tokens).collect();
                for (old, new) in [(&old.0, &shown.0), (&old.1, &shown.1)] {
                    assert_eq!(
                        rows_at(old, 2, *before, &old_chunks),
                        rows_at(new, 2, len, &old_chunks)
                    );
                }
            }
            packed = Some((len, shown));
        }
    }
}

#[test]
fn trim_of_nothing_all_and_more_than_there_is() {
    let stream = Stream::new(2, [64, 64], 150, 5);
    for mut cache in Cache::both(&config(&stream, 16, 4, 0)) {
        cache.append(&stream, 0, 100);
        let before = cache.show();
        cache.trim(0).unwrap();
        assert_eq!(cache.show(), before);
        assert!(matches!(cache.trim(101), Err(Error::TrimTooLong { got: 101, held: 100 })));
        assert_eq!(cache.show(), before);
        cache.trim(100).unwrap();
        let empty = cache.show();
        assert_eq!((empty.0.len(), empty.1.len()), (0, 0));
        assert_eq!((empty.2.len, empty.2.quantized_tokens, empty.2.device_bytes), (0, 0, 0));
        assert_eq!(empty.2.assigned_avg_bits, 16.0);
        assert!(matches!(cache.trim(1), Err(Error::TrimTooLong { got: 1, held: 0 })));
        cache.append(&stream, 0, 100);
        assert_eq!(cache.show(), before);
    }
}

#[test]
fn rows_come_back_from_a_chunk_as_they_decode() {
    let stream = Stream::new(2, [64, 80], 150, 6);
    for mut cache in Cache::both(&config(&stream, 16, 4, 0)) {
        cache.append(&stream, 0, 103);
        let before = cache.show();
        assert_eq!(before.2.quantized_tokens, 96);
        cache.trim(10).unwrap();
        let after = cache.show();
        assert_eq!((after.2.len, after.2.quantized_tokens), (93, 80));
        let all: Vec<usize> = (0..93).collect();
        assert_eq!(rows_at(&before.0, 2, 103, &all), after.0);
        assert_eq!(rows_at(&before.1, 2, 103, &all), after.1);
    }
}

#[test]
fn forks_share_pages_and_free_them() {
    let stream = Stream::new(2, [64, 64], 300, 7);
    for mut main in Cache::both(&config(&stream, 64, 0, 0)) {
        assert_eq!(main.counters().device_bytes, 0);
        main.append(&stream, 0, 130);
        let held = main.counters().device_bytes;
        let before = main.show();
        let chunk = (before.2.compressed_key_bytes + before.2.compressed_value_bytes) / 2;
        assert_eq!(held, 2 * chunk + before.2.residual_fp16_bytes);
        let (mut a, mut b) = (main.fork(), main.fork());
        assert_eq!(b.counters().device_bytes, held, "a fork alone holds nothing");
        a.append(&stream, 130, 62);
        b.append(&stream, 192, 62);
        assert_eq!(a.counters().quantized_tokens, 192);
        assert_eq!(a.counters().device_bytes, held + 2 * chunk);
        let shown = (main.show(), b.show());
        assert_eq!((&shown.0.0, &shown.0.1), (&before.0, &before.1));
        a.trim(100).unwrap();
        assert_eq!((a.counters().len, a.counters().quantized_tokens), (92, 64));
        let tail = a.counters().residual_fp16_bytes;
        assert_eq!(a.counters().device_bytes, held + chunk + tail);
        drop(main);
        assert_eq!((b.show().0, b.show().1), (shown.1.0, shown.1.1));
        assert_eq!(b.counters().device_bytes, 3 * chunk + tail);
        let account = b.fork();
        drop(a);
        assert_eq!(b.counters().device_bytes, 3 * chunk);
        drop(b);
        let mut account = account;
        account.trim(192).unwrap();
        assert_eq!(account.counters().device_bytes, 0);
    }
}

#[test]
fn refuses_tensors_that_do_not_fit() {
    let stream = Stream::new(2, [64, 64], 8, 8);
    let data = stream.part(0, 0, 8);
    let half = Tensor::new("t", Elements::F16(&data), 2, 8, 64).unwrap();
    let fewer = Tensor::new("t", Elements::F16(&data[..512]), 2, 4, 64).unwrap();
    let other_rows = Tensor::new("t", Elements::F16(&data[..512]), 1, 8, 64).unwrap();
    let narrow = Tensor::new("t", Elements::F16(&data[..512]), 2, 8, 32).unwrap();
    let wide = vec![0.0f32; data.len()];
    let full = Tensor::new("t", Elements::F32(&wide), 2, 8, 64).unwrap();
    let mut cache = cpu::LayerCache::new(config(&stream, 16, 0, 0)).unwrap();
    assert!(matches!(cache.append(&half, &fewer), Err(Error::Mismatch { argument: "values", .. })));
    assert!(matches!(
        cache.append(&other_rows, &half),
        Err(Error::Mismatch { argument: "keys", .. })
    ));
    assert!(matches!(
        cache.append(&half, &narrow),
        Err(Error::Mismatch { argument: "values", .. })
    ));
    assert!(matches!(cache.append(&full, &half), Err(Error::Dtype { argument: "keys", .. })));
    assert_eq!(cache.counters().len, 0);
    let bad = |change: fn(&mut CacheConfig)| {
        let mut config = config(&stream, 16, 0, 0);
        change(&mut config);
        cpu::LayerCache::new(config).unwrap_err()
    };
    assert!(matches!(bad(|c| c.rows = 0), Error::Empty { argument: "rows" }));
    assert!(matches!(bad(|c| c.head_dim_v = 60), Error::HeadDim { got: 60, .. }));
    assert!(matches!(bad(|c| c.chunk = 1), Error::OutOfRange { argument: "chunk", .. }));
}

/// Key scales are fixed from the first chunk, shared by forks, counted once, and gone when nothing is
/// packed.
#[test]
fn key_scales_live_as_long_as_anything_is_packed() {
    let stream = Stream::new(2, [64, 80], 300, 9);
    let config = CacheConfig { key_scale: true, ..config(&stream, 16, 4, 0) };
    let scales = 2 * 2 * 64;
    for empty in Cache::both(&config) {
        let mut main = empty.fork();
        main.append(&stream, 0, 19);
        assert_eq!(main.counters().device_bytes, main.counters().residual_fp16_bytes);
        main.append(&stream, 19, 81);
        let held = |cache: &Cache| {
            let counters = cache.counters();
            let packed = counters.compressed_key_bytes + counters.compressed_value_bytes;
            (counters.device_bytes, packed + counters.residual_fp16_bytes)
        };
        let (all, rows) = held(&main);
        assert_eq!(all, rows + scales);
        let mut fork = main.fork();
        assert_eq!(held(&fork).0, all, "a fork shares them");
        // Nothing but sinks: the next first chunk fixes them anew, and the other's stay.
        fork.trim(98).unwrap();
        fork.append(&stream, 150, 100);
        assert_eq!(held(&fork).0, all + scales + held(&fork).1);
        let mut fresh = empty.fork();
        fresh.append(&stream, 0, 2);
        fresh.append(&stream, 150, 100);
        assert_eq!((fork.show().0, fork.show().1), (fresh.show().0, fresh.show().1));
        drop((fork, fresh));
        assert_eq!(held(&main).0, all);
        // As long as a chunk stays, so do they.
        let mut short = main.fork();
        short.trim(80).unwrap();
        short.append(&stream, 100, 80);
        let chunk: Vec<usize> = (4..20).collect();
        let first = |shown: &Shown, len| rows_at(&shown.0, 2, len, &chunk);
        assert_eq!(first(&short.show(), 100), first(&main.show(), 100));
        drop((main, short));
        assert_eq!(empty.counters().device_bytes, 0);
    }
}

/// Keys whose channels differ widely: under scales they decode closer, and attention reads them as they
/// decode.
#[test]
fn attention_reads_keys_under_scales_as_they_decode() {
    let (rows, dims, len) = (2, [64, 32], 150);
    let mut stream = Stream::new(rows, dims, len, 10);
    for (index, key) in stream.data[0].iter_mut().enumerate() {
        let factor = if index % 64 % 7 == 0 { 8.0 } else { 1.0 };
        *key = f16::from_f32(factor * key.to_f32());
    }
    let queries = Stream::new(rows, dims, 6, 11).part(0, 0, 6);
    // Logits of a few at most, so that keys rounded to f16 move no weight by much.
    let longest = |x: &[f16]| {
        let norm = |row: &[f16]| row.iter().map(|x| x.to_f32().powi(2)).sum::<f32>().sqrt();
        x.chunks(64).map(norm).fold(0.0, f32::max)
    };
    let scale = Some(8.0 / (longest(&queries) * longest(&stream.data[0])));
    let settings = AttendConfig { scale, ..AttendConfig::default() };
    let mut errors = Vec::new();
    for key_scale in [false, true] {
        let config = CacheConfig { key_scale, ..config(&stream, 16, 4, 3) };
        for mut cache in Cache::both(&config) {
            cache.append(&stream, 0, len);
            let (keys, values, _) = cache.show();
            let decoded = Stream::of(rows, dims, len, [keys, values].map(|x| floats(&x)));
            let mut plain = Cache::both(&CacheConfig { recent: len, ..config.clone() });
            plain[0].append(&decoded, 0, len);
            let [ours, theirs] =
                [&cache, &plain[0]].map(|cache| cache.attend(&queries, rows, 1, 6, &settings).0);
            // Fetched rows are rounded to f16.
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
            let far = norm(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b));
            let size = norm(&mut theirs.iter().copied());
            assert!(far <= 1e-2 * size, "{far} of {size}");
            let came = stream.data[0].iter().map(|x| x.to_f64());
            let error = came.zip(&decoded.data[0]).map(|(a, b)| (a - b.to_f64()).powi(2));
            errors.push(error.sum::<f64>());
        }
    }
    println!("squared errors of keys: {errors:?}");
}

fn floats(bits: &[u16]) -> Vec<f16> {
    bits.iter().map(|x| f16::from_bits(*x)).collect()
}
