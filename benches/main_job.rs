//! The main job on the shipped sample, a real model's cache: of each layer half of the tokens are
//! evicted, the rest is packed to 2 bits and 64 queries attend to it. On the CPU and, where there is
//! an adapter, on the GPU with both layers in one submit, from keys in device memory to outputs in
//! host memory.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use safetensors::SafeTensors;
use wgkv::attention::gpu::{
    self as device_attention, DeviceCacheView, DevicePackedView, DeviceQueries,
};
use wgkv::attention::{AttendConfig, CacheView, PackedView, Queries, cpu::attend};
use wgkv::gpu::{
    Context, ContextDescriptor, DeviceTensor, Readback, Recorder, Slice, required_limits,
};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nestedkv::{self, Budget, EvictConfig, cpu::compress_prefill};
use wgkv::nsnquant::gpu::{self as device_nsnquant, DeviceCodec};
use wgkv::nsnquant::{Codebook, Codec, cpu::encode};
use wgkv::shape::{Dtype, Elements, Tensor};
use wgkv::wgpu;

const SINKS: usize = 4;
const RECENT: usize = 16;
const CHUNK: usize = 64;

/// Keys, values `[heads, tokens, dim]` and queries of a layer.
struct Layer {
    keys: Vec<f16>,
    values: Vec<f16>,
    queries: Vec<f16>,
    heads: usize,
    tokens: usize,
    dim: usize,
    query_heads: usize,
    query_tokens: usize,
}

fn layers() -> Vec<Layer> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/sample/smollm2_sample.safetensors");
    let bytes = std::fs::read(path).expect("the sample");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    [7, 22]
        .map(|layer| {
            let read = |part| {
                let view = file.tensor(&format!("layers.{layer}.{part}")).expect("a tensor");
                (view.shape().to_vec(), bytemuck::pod_collect_to_vec(view.data()))
            };
            let (shape, keys) = read("k");
            let (_, values) = read("v");
            let (query_shape, queries) = read("q");
            Layer {
                keys,
                values,
                queries,
                heads: shape[1],
                tokens: shape[2],
                dim: shape[3],
                query_heads: query_shape[1],
                query_tokens: query_shape[2],
            }
        })
        .into()
}

/// Where the parts of the rows that stay lie.
struct Parts {
    /// First token row of each chunk that is packed.
    starts: Vec<u32>,
    page_offsets: Vec<u32>,
    /// Token rows that stay raw.
    raw: Vec<u32>,
    raw_offsets: Vec<u32>,
}

fn parts(offsets: &[u32]) -> Parts {
    let mut parts =
        Parts { starts: vec![], page_offsets: vec![0], raw: vec![], raw_offsets: vec![0] };
    for row in offsets.windows(2) {
        let chunks = (row[1] - row[0]).saturating_sub((SINKS + RECENT) as u32) / CHUNK as u32;
        let packed = row[0] + SINKS as u32;
        let end = packed + chunks * CHUNK as u32;
        parts.starts.extend((packed..end).step_by(CHUNK));
        parts.page_offsets.push(parts.starts.len() as u32);
        parts.raw.extend((row[0]..packed).chain(end..row[1]));
        parts.raw_offsets.push(parts.raw.len() as u32);
    }
    parts
}

fn rows(data: &[f16], rows: &[u32], dim: usize) -> Vec<f16> {
    rows.iter().flat_map(|&row| &data[row as usize * dim..][..dim]).copied().collect()
}

fn on_cpu(layer: &Layer, codec: &Codec) -> Vec<f32> {
    let tensor = |name, data| {
        Tensor::new(name, Elements::F16(data), layer.heads, layer.tokens, layer.dim)
            .expect("a tensor")
    };
    let config = EvictConfig::new(Budget::Uniform(layer.tokens as u32 / 2));
    let evicted =
        compress_prefill(&tensor("keys", &layer.keys), &tensor("values", &layer.values), &config)
            .expect("evicted");
    let parts = parts(&evicted.kept.offsets);
    let pack = |data| encode(codec, Elements::F16(data), &parts.starts).expect("packed");
    let (key_pages, value_pages) = (pack(&evicted.keys), pack(&evicted.values));
    let raw_keys = rows(&evicted.keys, &parts.raw, layer.dim);
    let raw_values = rows(&evicted.values, &parts.raw, layer.dim);
    let view = CacheView {
        kv_rows: layer.heads,
        head_dim_k: layer.dim,
        head_dim_v: layer.dim,
        raw_offsets: &parts.raw_offsets,
        raw_keys: Elements::F16(&raw_keys),
        raw_values: Elements::F16(&raw_values),
        raw_positions: &[],
        packed: Some(PackedView {
            key_scales: None,
            keys: codec,
            values: codec,
            page_offsets: &parts.page_offsets,
            key_pages: &key_pages,
            value_pages: &value_pages,
            page_positions: &[],
        }),
    };
    let queries = Queries {
        data: Elements::F16(&layer.queries),
        batch: 1,
        heads: layer.query_heads,
        tokens: layer.query_tokens,
        head_dim: layer.dim,
    };
    attend(&view, &queries, &AttendConfig::default()).expect("attended").out
}

/// Keys, values and queries of a layer in device memory.
fn upload(context: &Context, layer: &Layer) -> [wgpu::Buffer; 3] {
    [&layer.keys, &layer.values, &layer.queries]
        .map(|data| context.upload("layer", bytemuck::cast_slice(data)).expect("a buffer"))
}

fn on_gpu(
    recorder: &mut Recorder<'_>,
    layer: &Layer,
    [keys, values, queries]: &[wgpu::Buffer; 3],
    codec: &DeviceCodec,
) -> wgkv::Result<Readback> {
    let budget = layer.tokens as u32 / 2;
    let tensor = |name, buffer| {
        let slice = Slice::all(buffer);
        DeviceTensor::new(name, slice, Dtype::F16, layer.heads, layer.tokens, layer.dim)
    };
    let evicted = nestedkv::gpu::compress_prefill(
        recorder,
        &tensor("keys", keys)?,
        &tensor("values", values)?,
        &EvictConfig::new(Budget::Uniform(budget)),
    )?;
    let offsets: Vec<u32> = (0..=layer.heads as u32).map(|row| row * budget).collect();
    let parts = parts(&offsets);
    let context = recorder.context();
    let list = |name, words: &[u32]| context.upload(name, bytemuck::cast_slice(words));
    let starts = list("starts", &parts.starts)?;
    let (raw_offsets, page_offsets) =
        (list("raw offsets", &parts.raw_offsets)?, list("page offsets", &parts.page_offsets)?);
    let pages = parts.starts.len();
    let kept = *offsets.last().expect("an offset") as usize;
    let row_bytes = 2 * layer.dim as u64;
    let mut side = |rows: &wgpu::Buffer| -> wgkv::Result<(wgpu::Buffer, wgpu::Buffer)> {
        let packed = context.create("pages", (4 * pages * codec.layout().words()) as u64)?;
        device_nsnquant::encode(
            recorder,
            codec,
            Slice::all(rows),
            Dtype::F16,
            kept,
            Slice::all(&starts),
            pages,
            Slice::all(&packed),
        )?;
        let raw = context.create("raw rows", parts.raw.len() as u64 * row_bytes)?;
        let mut from = 0;
        while from < parts.raw.len() {
            let run = (1..).take_while(|n| {
                parts.raw.get(from + n).is_some_and(|row| *row == parts.raw[from] + *n as u32)
            });
            let count = 1 + run.count();
            let source = u64::from(parts.raw[from]) * row_bytes;
            recorder.copy(rows, source, &raw, from as u64 * row_bytes, count as u64 * row_bytes)?;
            from += count;
        }
        Ok((packed, raw))
    };
    let (key_pages, raw_keys) = side(&evicted.keys.rows)?;
    let (value_pages, raw_values) = side(&evicted.values.rows)?;
    let view = DeviceCacheView {
        kv_rows: layer.heads,
        head_dim_k: layer.dim,
        head_dim_v: layer.dim,
        raw_tokens: parts.raw.len(),
        key_dtype: Dtype::F16,
        value_dtype: Dtype::F16,
        raw_offsets: Slice::all(&raw_offsets),
        raw_keys: Slice::all(&raw_keys),
        raw_values: Slice::all(&raw_values),
        raw_positions: None,
        packed: Some(DevicePackedView {
            key_scales: None,
            keys: codec,
            values: codec,
            pages,
            page_offsets: Slice::all(&page_offsets),
            key_pages: Slice::all(&key_pages),
            value_pages: Slice::all(&value_pages),
            page_positions: None,
        }),
    };
    let queries = DeviceQueries {
        data: Slice::all(queries),
        dtype: Dtype::F16,
        batch: 1,
        heads: layer.query_heads,
        tokens: layer.query_tokens,
        head_dim: layer.dim,
    };
    let attended = device_attention::attend(recorder, &view, &queries, &AttendConfig::default())?;
    recorder.read_back(Slice::all(&attended.out))
}

/// A context on the first adapter, if there is one.
fn context() -> Option<Context> {
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let adapter = pollster::block_on(instance.request_adapter(&Default::default())).ok()?;
    eprintln!("GPU: {}", adapter.get_info().name);
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
    Context::new(&device, &queue, &ContextDescriptor::default()).ok()
}

fn run_on_gpu(
    context: &Context,
    layers: &[Layer],
    buffers: &[[wgpu::Buffer; 3]],
    codec: &DeviceCodec,
) -> Vec<Vec<f32>> {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let outputs: Vec<_> = layers
        .iter()
        .zip(buffers)
        .map(|(layer, buffers)| on_gpu(&mut recorder, layer, buffers, codec).expect("recorded"))
        .collect();
    recorder.finish().expect("finished");
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("polled");
    let read = |output: Readback| {
        bytemuck::pod_collect_to_vec(&pollster::block_on(output).expect("an answer"))
    };
    outputs.into_iter().map(read).collect()
}

fn main_job(c: &mut Criterion) {
    let layers = layers();
    let layout = PageLayout::new("dim", layers[0].dim, Bits::Two, CHUNK).expect("a layout");
    let codec = Codec::new(layout, Codebook::builtin()).expect("a codec");
    let mut group = c.benchmark_group("main job");
    group.sample_size(20);
    group.bench_function("cpu", |b| {
        b.iter(|| layers.iter().map(|layer| on_cpu(black_box(layer), &codec)).collect::<Vec<_>>());
    });
    if let Some(context) = context() {
        let buffers: Vec<_> = layers.iter().map(|layer| upload(&context, layer)).collect();
        let device_codec = DeviceCodec::new(&context, codec.clone()).expect("a codec");
        let run = || run_on_gpu(&context, &layers, &buffers, &device_codec);
        for (layer, got) in layers.iter().zip(run()) {
            let want = on_cpu(layer, &codec);
            let far = want.iter().zip(&got).map(|(w, g)| (w - g).abs()).fold(0.0, f32::max);
            assert!(want.len() == got.len() && far < 0.05, "the paths differ by {far}");
        }
        group.bench_function("gpu", |b| b.iter(run));
    }
    group.finish();
}

criterion_group!(benches, main_job);
criterion_main!(benches);
