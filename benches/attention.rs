//! Attention of one layer: 8 KV heads of 128 channels, 32 query heads.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use wgkv::attention::gpu::{
    DeviceCacheView, DevicePackedView, DevicePagedView, DeviceQueries, DeviceTables,
};
use wgkv::attention::{AttendConfig, CacheView, PackedView, PagedAttend, Queries, cpu, gpu};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::pool::{PageClass, PageId, PoolLayout};
use wgkv::layout::tables::Tables;
use wgkv::layout::{Bits, PageLayout};
use wgkv::nsnquant::gpu::{DeviceCodebook, DeviceCodec};
use wgkv::nsnquant::{Codebook, Codec};
use wgkv::shape::{Dtype, Elements};
use wgkv::wgpu;

const KV_HEADS: usize = 8;
const HEADS: usize = 32;
const HEAD_DIM: usize = 128;
const CHUNK: usize = 64;

fn values(count: usize, mut state: u64) -> Vec<f16> {
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| f16::from_f32(2.0 * (next() + next() + next()))).collect()
}

/// A layer's cache, all of it raw and all of it packed, and queries.
struct Layer {
    keys: Vec<f16>,
    values: Vec<f16>,
    offsets: Vec<u32>,
    key_pages: Vec<u32>,
    value_pages: Vec<u32>,
    page_offsets: Vec<u32>,
    none: Vec<u32>,
    codec: Codec,
    queries: Vec<f16>,
    query_tokens: usize,
}

impl Layer {
    fn new(tokens: usize, query_tokens: usize, bits: u32) -> Self {
        let bits = Bits::new("bits", bits).expect("1 or 2 bits");
        let layout = PageLayout::new("data", HEAD_DIM, bits, CHUNK).expect("a layout");
        let codec = Codec::new(layout, Codebook::builtin()).expect("a codec");
        let rows = KV_HEADS * tokens;
        let (keys, vals) = (values(rows * HEAD_DIM, 1), values(rows * HEAD_DIM, 2));
        let starts: Vec<u32> = (0..rows as u32).step_by(CHUNK).collect();
        let pack = |data: &[f16]| {
            wgkv::nsnquant::cpu::encode(&codec, Elements::F16(data), &starts).expect("pages")
        };
        let offsets = |count: usize| (0..=KV_HEADS).map(|row| (row * count) as u32).collect();
        Self {
            key_pages: pack(&keys),
            value_pages: pack(&vals),
            keys,
            values: vals,
            offsets: offsets(tokens),
            page_offsets: offsets(tokens / CHUNK),
            none: vec![0; KV_HEADS + 1],
            codec,
            queries: values(HEADS * query_tokens * HEAD_DIM, 3),
            query_tokens,
        }
    }

    fn view(&self, packed: bool) -> CacheView<'_> {
        let raw = if packed { 0 } else { self.keys.len() };
        CacheView {
            kv_rows: KV_HEADS,
            head_dim_k: HEAD_DIM,
            head_dim_v: HEAD_DIM,
            raw_offsets: if packed { &self.none } else { &self.offsets },
            raw_keys: Elements::F16(&self.keys[..raw]),
            raw_values: Elements::F16(&self.values[..raw]),
            raw_positions: &[],
            packed: packed.then_some(PackedView {
                key_scales: None,
                keys: &self.codec,
                values: &self.codec,
                page_offsets: &self.page_offsets,
                key_pages: &self.key_pages,
                value_pages: &self.value_pages,
                page_positions: &[],
            }),
        }
    }

    fn queries(&self) -> Queries<'_> {
        Queries {
            data: Elements::F16(&self.queries),
            batch: 1,
            heads: HEADS,
            tokens: self.query_tokens,
            head_dim: HEAD_DIM,
        }
    }
}

const KINDS: [(&str, bool, u32); 3] = [("raw", false, 2), ("2bit", true, 2), ("1bit", true, 1)];

fn on_cpu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attention/cpu");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for (tokens, query_tokens) in [(4096, 1), (16384, 1), (2048, 64)] {
        group.throughput(Throughput::Elements((KV_HEADS * tokens) as u64));
        for (name, packed, bits) in KINDS {
            let layer = Layer::new(tokens, query_tokens, bits);
            let id = BenchmarkId::new(name, format!("{tokens}x{query_tokens}"));
            group.bench_function(id, |b| {
                b.iter(|| {
                    let config = AttendConfig::default();
                    cpu::attend(black_box(&layer.view(packed)), &layer.queries(), &config)
                })
            });
        }
    }
    group.finish();
}

fn context() -> Option<Context> {
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    let adapter = pollster::block_on(instance.request_adapter(&options)).ok()?;
    println!("GPU: {}", adapter.get_info().name);
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: wgkv::gpu::required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
    Context::new(&device, &queue, &ContextDescriptor::default()).ok()
}

/// Attentions of one submit.
const BATCH: usize = 32;

/// Submits `times` recordings at once and returns the time from there until all have run.
fn submit<T>(
    context: &Context,
    times: u64,
    record: impl Fn(&mut Recorder<'_>) -> wgkv::Result<T>,
) -> Duration {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let kept: Vec<T> = (0..times).map(|_| record(&mut recorder).expect("a recording")).collect();
    recorder.finish().expect("a recording");
    let start = std::time::Instant::now();
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    drop(kept);
    start.elapsed()
}

fn on_gpu(criterion: &mut Criterion) {
    let Some(context) = context() else { return };
    let software = context.device().adapter_info().device_type == wgpu::DeviceType::Cpu;
    let mut group = criterion.benchmark_group("attention/gpu");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let upload = |bytes: &[u8]| context.upload("bench", bytes).expect("a buffer");
    for (tokens, query_tokens) in [(if software { 4096 } else { 32_768 }, 1)] {
        group.throughput(Throughput::Elements((KV_HEADS * tokens) as u64));
        for (name, packed, bits) in KINDS {
            let layer = Layer::new(tokens, query_tokens, bits);
            let codec = DeviceCodec::new(&context, layer.codec.clone()).expect("a codec");
            let [keys, values, queries] = [&layer.keys, &layer.values, &layer.queries]
                .map(|data| upload(bytemuck::cast_slice(data)));
            let [offsets, page_offsets, key_pages, value_pages] =
                [&layer.offsets, &layer.page_offsets, &layer.key_pages, &layer.value_pages]
                    .map(|data| upload(bytemuck::cast_slice(data)));
            let view = DeviceCacheView {
                kv_rows: KV_HEADS,
                head_dim_k: HEAD_DIM,
                head_dim_v: HEAD_DIM,
                raw_tokens: if packed { 0 } else { KV_HEADS * tokens },
                key_dtype: Dtype::F16,
                value_dtype: Dtype::F16,
                raw_offsets: Slice::all(&offsets),
                raw_keys: Slice::all(&keys),
                raw_values: Slice::all(&values),
                raw_positions: None,
                packed: packed.then_some(DevicePackedView {
                    key_scales: None,
                    keys: &codec,
                    values: &codec,
                    pages: KV_HEADS * tokens / CHUNK,
                    page_offsets: Slice::all(&page_offsets),
                    key_pages: Slice::all(&key_pages),
                    value_pages: Slice::all(&value_pages),
                    page_positions: None,
                }),
            };
            let queries = DeviceQueries {
                data: Slice::all(&queries),
                dtype: Dtype::F16,
                batch: 1,
                heads: HEADS,
                tokens: query_tokens,
                head_dim: HEAD_DIM,
            };
            let id = BenchmarkId::new(name, format!("{tokens}x{query_tokens}"));
            group.bench_function(id, |b| {
                b.iter_custom(|times| {
                    let mut spent = Duration::ZERO;
                    for first in (0..times).step_by(BATCH) {
                        let count = (times - first).min(BATCH as u64);
                        spent += submit(&context, count, |rec| {
                            gpu::attend(rec, &view, &queries, &AttendConfig::default())
                        });
                    }
                    spent
                })
            });
        }
    }
    group.finish();
}

/// Sequences of one length in pages that lie one after the other in so many slabs.
struct Paged {
    layout: PoolLayout,
    tables: Tables,
    slabs: [Vec<Option<wgpu::Buffer>>; 3],
}

impl Paged {
    /// `page` are the words of one page, of which all are copies.
    fn new(
        context: &Context,
        bits: Option<Bits>,
        sequences: usize,
        tokens: usize,
        slabs: usize,
        page: &[u32],
    ) -> Self {
        let rows = sequences * KV_HEADS;
        let pages = rows * (tokens / CHUNK);
        let class = if bits.is_some() { PageClass::Packed } else { PageClass::Raw };
        let rates = bits.map(|bits| (bits, bits));
        let layout =
            |bytes| PoolLayout::new(HEAD_DIM, HEAD_DIM, rates, CHUNK, 0, bytes).expect("a layout");
        let bytes = layout(1 << 30).bytes(class);
        let layout = layout(bytes * pages.div_ceil(slabs) as u64);
        let each = layout.pages_per_slab(class) as usize;
        let mut words = page.to_vec();
        words.resize(layout.words(class), 0);
        let words = words.repeat(each);
        let held: Vec<_> = (0..pages.div_ceil(each))
            .map(|_| Some(context.upload("slab", bytemuck::cast_slice(&words)).expect("a slab")))
            .collect();
        let ids = (0..pages).map(|at| layout.page(class, (at / each) as u32, (at % each) as u32));
        let offsets: Vec<u32> = (0..=rows).map(|row| (row * (tokens / CHUNK)) as u32).collect();
        let mut tables = Tables {
            next: vec![tokens as u32 + 1; sequences],
            sinks: vec![PageId::NONE; rows],
            sink_rows: vec![0; rows],
            packed_offsets: vec![0; rows + 1],
            tail_offsets: vec![0; rows + 1],
            tail_rows: vec![0; rows],
            chunk: CHUNK as u32,
            ..Tables::default()
        };
        let mut slabs: [Vec<Option<wgpu::Buffer>>; 3] = Default::default();
        slabs[class.index()] = held;
        if bits.is_some() {
            (tables.packed, tables.packed_offsets) = (ids.collect(), offsets);
        } else {
            (tables.tail, tables.tail_offsets) = (ids.collect(), offsets);
            tables.tail_rows.fill(tokens as u32);
        }
        Self { layout, tables, slabs }
    }
}

/// Decoding in pages: one query token of each sequence.
fn on_pages(criterion: &mut Criterion) {
    let Some(context) = context() else { return };
    let mut group = criterion.benchmark_group("attention/pages");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let software = context.device().adapter_info().device_type == wgpu::DeviceType::Cpu;
    let (sequences, tokens) = if software { (1, 4096) } else { (8, 32_768) };
    group.throughput(Throughput::Elements((sequences * KV_HEADS * tokens) as u64));
    let codebook = DeviceCodebook::new(&context, &Codebook::builtin()).expect("a codebook");
    let queries = values(sequences * HEADS * HEAD_DIM, 3);
    let queries = context.upload("queries", bytemuck::cast_slice(&queries)).expect("queries");
    let layer = |bits| Layer::new(CHUNK, 1, bits);
    for (name, bits) in [("raw", None), ("2bit", Some(Bits::Two)), ("1bit", Some(Bits::One))] {
        let layer = layer(bits.map_or(2, |bits| bits.get() as u32));
        let mut page = Vec::new();
        match bits {
            Some(_) => {
                let words = layer.codec.layout().words();
                for part in [&layer.key_pages, &layer.value_pages] {
                    page.extend_from_slice(&part[..words]);
                    page.resize(page.len().next_multiple_of(4), 0);
                }
            }
            None => {
                for part in [&layer.keys, &layer.values] {
                    page.extend_from_slice(bytemuck::cast_slice(&part[..CHUNK * HEAD_DIM]));
                }
            }
        }
        for slabs in [1, 3, 6] {
            let paged = Paged::new(&context, bits, sequences, tokens, slabs, &page);
            let tables = DeviceTables::new(&context, &paged.layout, &paged.tables);
            let tables = tables.expect("tables");
            let [sinks, packed, tail] = &paged.slabs;
            let view = DevicePagedView {
                key_scales: None,
                layout: &paged.layout,
                raw: Dtype::F16,
                codebook: Some(&codebook),
                keys: None,
                tables: &tables,
                slabs: [sinks, packed, tail],
            };
            let queries = DeviceQueries {
                data: Slice::all(&queries),
                dtype: Dtype::F16,
                batch: sequences,
                heads: HEADS,
                tokens: 1,
                head_dim: HEAD_DIM,
            };
            let id = BenchmarkId::new(name, format!("{sequences}x{tokens} in {slabs} slabs"));
            group.bench_function(id, |b| {
                b.iter_custom(|times| {
                    let mut spent = Duration::ZERO;
                    for first in (0..times).step_by(BATCH) {
                        let count = (times - first).min(BATCH as u64);
                        spent += submit(&context, count, |rec| {
                            gpu::attend_paged(rec, &view, &queries, &PagedAttend::default())
                        });
                    }
                    spent
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, on_cpu, on_gpu, on_pages);
criterion_main!(benches);
