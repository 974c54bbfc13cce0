//! Every kernel of the library by the GPU's own clock, one row each, in the first of the jobs below that
//! runs it: 8 KV heads of 128 channels, 4,096 tokens on a GPU and 1,024 on a software adapter. Each kernel
//! waits for the one before it, so that the rows of a job add up to more than the job takes. Names at the
//! end are kernels that no job has run.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use wgkv::attention::gpu::{DeviceCacheView, DevicePackedView, DeviceQueries, attend};
use wgkv::attention::{AttendConfig, PagedAttend};
use wgkv::cache::CacheConfig;
use wgkv::cache::gpu::{Fetch, IncomingRows, LayerCache, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{DeviceTensor, Recorder, Slice, Span};
use wgkv::layout::{Bits, Preset, Profile};
use wgkv::nestedkv::gpu::{self as nestedkv, NestedKvState};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::gpu::{DeviceCodec, decode, encode};
use wgkv::nsnquant::{Codebook, Codec, Rope};
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const DIM: usize = 128;
const CHUNK: usize = 64;

/// A job, and the spans of its kernels when it is run once.
type Job = (String, Box<dyn Fn() -> Vec<Span>>);

/// Runs a recording with every kernel timed on its own.
fn run<T>(record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>) -> (T, Vec<Span>) {
    let context = support::context();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    recorder.mark_each();
    let value = record(&mut recorder).expect("a recording");
    let timing = recorder.finish().expect("a recording");
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    let spans = timing.map(|timing| pollster::block_on(timing.spans()).expect("spans"));
    (value, spans.unwrap_or_default())
}

/// Buffers that the jobs read: f16 rows, and positions that count up.
struct Data {
    rows: wgpu::Buffer,
    positions: wgpu::Buffer,
    tokens: usize,
}

impl Data {
    fn new() -> Self {
        let context = support::context();
        let software = context.device().adapter_info().device_type == wgpu::DeviceType::Cpu;
        let tokens = if software { 1024 } else { 4096 };
        // Halves from 1 to 2 of either sign.
        let word = |i: usize| (i as u32).wrapping_mul(2_654_435_761) & 0x83ff_83ff | 0x3c00_3c00;
        let words: Vec<u32> = (0..HEADS * tokens * DIM / 2).map(word).collect();
        let positions: Vec<u32> = (0..HEADS).flat_map(|_| 0..tokens as u32).collect();
        let upload =
            |words: &[u32]| context.upload("data", bytemuck::cast_slice(words)).expect("a buffer");
        Self { rows: upload(&words), positions: upload(&positions), tokens }
    }

    fn tensor(&self, rows: usize, tokens: usize) -> DeviceTensor<'_> {
        let size = (rows * tokens * DIM * 2) as u64;
        let slice = Slice { size, ..Slice::all(&self.rows) };
        DeviceTensor::new("data", slice, Dtype::F16, rows, tokens, DIM).expect("a tensor")
    }

    fn queries(&self, group: usize, tokens: usize) -> DeviceQueries<'_> {
        let size = (HEADS * group * tokens * DIM * 2) as u64;
        DeviceQueries {
            data: Slice { size, ..Slice::all(&self.rows) },
            dtype: Dtype::F16,
            batch: 1,
            heads: HEADS * group,
            tokens,
            head_dim: DIM,
        }
    }

    fn incoming(&self, rows: u32) -> Option<IncomingRows<'_>> {
        let size = u64::from(rows) * DIM as u64 * 2;
        let data = Slice { size, ..Slice::all(&self.rows) };
        (rows > 0).then_some(IncomingRows { keys: data, values: data, dtype: Dtype::F16 })
    }
}

fn shared() -> &'static Data {
    static DATA: std::sync::OnceLock<Data> = std::sync::OnceLock::new();
    DATA.get_or_init(Data::new)
}

fn evictions(jobs: &mut Vec<Job>) {
    let data = shared();
    let (half, few) = (data.tokens as u32 / 2, 5);
    let uniform = EvictConfig::new(Budget::Uniform(half));
    let adaptive = EvictConfig::new(Budget::Adaptive { per_head: half, heads: HEADS });
    let mut window = EvictConfig::new(Budget::Uniform(half));
    window.score.window = 48;
    let short = EvictConfig::new(Budget::Uniform(2));
    for (name, config, rows, tokens) in [
        ("eviction", uniform, HEADS, data.tokens),
        ("eviction with head budgets", adaptive, HEADS, data.tokens),
        ("eviction by another window", window, HEADS, data.tokens),
        ("eviction of a long row", uniform, 1, HEADS * data.tokens),
        ("eviction of short rows", short, HEADS, few),
    ] {
        let job = move || {
            let rows = data.tensor(rows, tokens);
            run(|rec| nestedkv::compress_prefill(rec, &rows, &rows, &config)).1
        };
        jobs.push((name.into(), Box::new(job)));
    }
    let append = move || {
        let state = NestedKvState::new(support::context(), HEADS, DIM, DIM, uniform);
        let mut state = state.expect("a state");
        let rows = data.tensor(HEADS, data.tokens / 2);
        run(|rec| {
            state.append_prefill(rec, &rows, &rows)?;
            state.append_prefill(rec, &rows, &rows)
        })
        .1
    };
    jobs.push(("a prompt in two parts".into(), Box::new(append)));
}

/// Rates of the default preset, as `tuned` or `compat`, with keys packed before or after their embedding.
fn codecs(profile: Profile, rope: bool) -> [Codec; 2] {
    let bits = match profile {
        Profile::Tuned => [Bits::Three, Bits::Two],
        _ => [Bits::Two; 2],
    };
    let [keys, values] = bits.map(|bits| {
        let scheme = profile.scheme(bits);
        Codec::with("data", DIM, scheme, CHUNK, Codebook::builtin()).expect("a codec")
    });
    let rope = rope.then(|| Rope::theta(1e4, DIM).expect("an embedding"));
    [keys.with_rope(rope).expect("a codec"), values]
}

/// Rows side by side: packed, unpacked, attended to by 1, 2 and 4 query heads a KV head.
fn flat(jobs: &mut Vec<Job>, profile: Profile, rope: bool) {
    let (data, context) = (shared(), support::context());
    let codecs = codecs(profile, rope).map(|codec| DeviceCodec::new(context, codec));
    let codecs = std::sync::Arc::new(codecs.map(|codec| codec.expect("a codec")));
    let rows = HEADS * data.tokens;
    let pages = rows / CHUNK;
    let words =
        |words: &[u32]| context.upload("words", bytemuck::cast_slice(words)).expect("a buffer");
    let starts: Vec<u32> = (0..rows as u32).step_by(CHUNK).collect();
    let starts = words(&starts);
    let offsets = |count: usize| -> Vec<u32> {
        (0..=HEADS).map(|row| (row * count / HEADS) as u32).collect()
    };
    let (raw_offsets, page_offsets) = (words(&offsets(rows)), words(&offsets(pages)));
    let room = |words: usize| context.create("room", words as u64 * 4).expect("a buffer");
    let packed = [0, 1].map(|side| room(pages * codecs[side].layout().words()));
    let unpacked = room(rows * DIM / 2);
    let name = format!("{}{}", profile.name(), if rope { ", unturned keys" } else { "" });
    let encoded = {
        let (codecs, packed, starts) = (codecs.clone(), packed.clone(), starts.clone());
        move || {
            // A key codec with an embedding packs by position, which the paged cache does.
            let coded = if rope { &codecs[1] } else { &codecs[0] };
            let starts = Slice::all(&starts);
            run(|rec| {
                let (from, to) = (Slice::all(&data.rows), Slice::all(&packed[usize::from(rope)]));
                encode(rec, coded, from, Dtype::F16, rows, starts, pages, to)?;
                let to = Slice::all(&unpacked);
                let from = Slice::all(&packed[usize::from(rope)]);
                decode(rec, coded, from, pages, starts, to, Dtype::F16, rows)
            })
            .1
        }
    };
    encoded();
    jobs.push((format!("packing and unpacking, {name}"), Box::new(encoded)));
    for (group, tokens) in [(1, 1), (2, 1), (4, 1)] {
        let (codecs, packed) = (codecs.clone(), packed.clone());
        let (raw_offsets, page_offsets) = (raw_offsets.clone(), page_offsets.clone());
        let job = move || {
            let view = DeviceCacheView {
                kv_rows: HEADS,
                head_dim_k: DIM,
                head_dim_v: DIM,
                raw_tokens: rows,
                key_dtype: Dtype::F16,
                value_dtype: Dtype::F16,
                raw_offsets: Slice::all(&raw_offsets),
                raw_keys: Slice::all(&data.rows),
                raw_values: Slice::all(&data.rows),
                raw_positions: None,
                packed: Some(DevicePackedView {
                    keys: &codecs[0],
                    values: &codecs[1],
                    pages,
                    page_offsets: Slice::all(&page_offsets),
                    key_pages: Slice::all(&packed[0]),
                    value_pages: Slice::all(&packed[1]),
                    page_positions: rope.then_some(Slice::all(&data.positions)),
                    key_scales: None,
                }),
            };
            let queries = data.queries(group, tokens);
            run(|rec| attend(rec, &view, &queries, &AttendConfig::default())).1
        };
        jobs.push((format!("attention on {name} x{group}"), Box::new(job)));
    }
}

/// The cache of one layer under a key scale.
fn layer(jobs: &mut Vec<Job>) {
    let job = || {
        let data = shared();
        let config = CacheConfig::new(&Preset::default(), HEADS, [DIM; 2]);
        let mut cache = LayerCache::new(support::context(), config).expect("a cache");
        let rows = data.tensor(HEADS, data.tokens);
        run(|rec| {
            cache.append(rec, &rows, &rows)?;
            cache.fetch(rec)
        })
        .1
    };
    jobs.push(("a layer's cache".into(), Box::new(job)));
}

/// A sequence in the pages of a pool through all that can happen to it.
struct Pages {
    cache: PagedCache,
    spans: Vec<Span>,
}

impl Pages {
    fn new(config: PoolConfig) -> Self {
        let cache = PagedCache::new(support::context(), config, Codebook::builtin());
        Self { cache: cache.expect("a cache"), spans: Vec::new() }
    }

    fn step(&mut self, operation: &Operation<'_>) {
        let step = self.cache.step(operation).expect("a step");
        let rows = shared().incoming(step.source_rows());
        self.spans.extend(run(|rec| self.cache.record(rec, &step, 0, rows)).1);
    }

    fn prompt(&mut self) -> SequenceId {
        let sequence = self.cache.begin();
        let parts = [Part { sequence, tokens: shared().tokens as u32 }];
        self.step(&Operation::Prefill { parts: &parts });
        sequence
    }

    fn attend(&mut self, sequence: SequenceId, group: usize) {
        let mut batch = self.cache.batch(&[sequence]).expect("a batch");
        let (queries, config) = (shared().queries(group, 1), PagedAttend::default());
        let attended = run(|rec| self.cache.attend(rec, &mut batch, 0, &queries, &config));
        self.spans.extend(attended.1);
    }

    fn life(mut self) -> Vec<Span> {
        let half = shared().tokens as u32 / 2;
        let evicted = self.prompt();
        let config = EvictConfig::new(Budget::Uniform(half));
        let (eviction, spans) = run(|rec| self.cache.evict(rec, evicted, 0, &config));
        self.spans.extend(spans);
        let finished = run(|rec| self.cache.finish(rec, &eviction, &[half; HEADS]));
        self.spans.extend(finished.1);
        let whole = self.prompt();
        self.step(&Operation::Finish { sequence: whole, layers: 0..1, keep: Keep::All });
        for group in [1, 2, 4] {
            self.attend(whole, group);
        }
        let sequence = self.cache.fork(whole).expect("a fork");
        let parts = |tokens| [Part { sequence, tokens }];
        self.step(&Operation::Append { parts: &parts(1), flush: true });
        self.step(&Operation::Trim { parts: &parts(150) });
        let tokens = shared().tokens;
        let bytes = (HEADS * tokens * DIM * 2) as u64;
        let [keys, values] =
            [(); 2].map(|()| support::context().create("rows", bytes).expect("a buffer"));
        let (keys, values) = (Slice::all(&keys), Slice::all(&values));
        let to = Fetch { keys, values, positions: None, tokens, dtype: Dtype::F16 };
        let mut batch = self.cache.batch(&[whole]).expect("a batch");
        self.spans.extend(run(|rec| self.cache.fetch(rec, &mut batch, 0, &to)).1);
        self.spans
    }
}

fn pages(jobs: &mut Vec<Job>, profile: Profile, rope: bool, slab_bytes: u64) {
    let mut preset = Preset::default();
    if profile != Profile::Tuned {
        (preset.profile, preset.k_bits, preset.v_bits) = (profile, Bits::Two, Bits::Two);
        preset.key_scale = false;
    }
    let config = PoolConfig::new(&preset, 1, HEADS, [DIM; 2], 1 << 28);
    let mut config = config.expect("a pool");
    config.slab_bytes = config.slab_bytes.min(slab_bytes);
    config.rope = rope.then(|| Rope::theta(1e4, DIM).expect("an embedding"));
    let name = format!("pages of {}, slabs of {slab_bytes} bytes", profile.name());
    jobs.push((name, Box::new(move || Pages::new(config.clone()).life())));
}

fn kernels(criterion: &mut Criterion) {
    let mut jobs = Vec::new();
    evictions(&mut jobs);
    layer(&mut jobs);
    pages(&mut jobs, Profile::Tuned, false, 1 << 26);
    pages(&mut jobs, Profile::Compat, false, 1 << 26);
    pages(&mut jobs, Profile::Tuned, true, 1 << 26);
    // More slabs than a kernel binds.
    pages(&mut jobs, Profile::Tuned, false, 1 << 16);
    for (profile, rope) in
        [(Profile::Tuned, false), (Profile::Compat, false), (Profile::Tuned, true)]
    {
        flat(&mut jobs, profile, rope);
    }
    let mut group = criterion.benchmark_group("kernels");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    // The completion word and the self-test, which runs once, are no part of any job.
    let own = wgkv::kernels::kernels().into_iter().map(|(kernel, _)| kernel.name);
    let mut left: BTreeSet<&str> = own.filter(|name| !name.starts_with("common/")).collect();
    for (name, job) in &jobs {
        let ran = job();
        if ran.is_empty() || ran.iter().any(|span| span.nanoseconds.is_none()) {
            println!("{name}: the device has no timestamps");
            continue;
        }
        let ran: BTreeSet<&str> = ran.iter().map(|span| span.label).collect();
        for kernel in ran {
            if !left.remove(kernel) {
                continue;
            }
            println!("{kernel}: {name}");
            let time = || {
                let spans = job();
                let own = spans.iter().filter(|span| span.label == kernel);
                own.filter_map(|span| span.nanoseconds).sum::<f64>()
            };
            group.bench_function(kernel, |b| {
                b.iter_custom(|times| {
                    Duration::from_secs_f64((0..times).map(|_| time()).sum::<f64>() / 1e9)
                })
            });
        }
    }
    group.finish();
    for kernel in left {
        println!("{kernel}: in no job");
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
