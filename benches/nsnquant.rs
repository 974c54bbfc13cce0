//! NSNQuant: packing and unpacking keys and values of one layer, 8 heads of 128 channels.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nsnquant::gpu::{self, DeviceCodec};
use wgkv::nsnquant::{Codebook, Codec, cpu};
use wgkv::shape::{Dtype, Elements};
use wgkv::wgpu;

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const CHUNK: usize = 64;
/// Keys and values.
const TENSORS: usize = 2;

fn codec(bits: u32) -> Codec {
    let bits = Bits::new("bits", bits).expect("1 or 2 bits");
    let layout = PageLayout::new("data", HEAD_DIM, bits, CHUNK).expect("a layout");
    Codec::new(layout, Codebook::builtin()).expect("a codec")
}

/// Rows that look like a layer's: an offset per channel and noise.
fn rows(tokens: usize) -> Vec<f16> {
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..TENSORS * HEADS * tokens * HEAD_DIM)
        .map(|i| f16::from_f32(next() + next() + next() + (i % HEAD_DIM % 7) as f32 * 0.1))
        .collect()
}

fn starts(rows: usize) -> Vec<u32> {
    (0..rows / CHUNK).map(|page| (page * CHUNK) as u32).collect()
}

fn on_cpu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nsnquant/cpu");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for tokens in [1024, 4096] {
        let data = rows(tokens);
        let starts = starts(data.len() / HEAD_DIM);
        group.throughput(Throughput::Bytes((data.len() * 2) as u64));
        for bits in [1, 2] {
            let codec = codec(bits);
            let id = format!("{bits}bit/{tokens}");
            group.bench_function(BenchmarkId::new("encode", &id), |b| {
                b.iter(|| cpu::encode(&codec, Elements::F16(black_box(&data)), &starts))
            });
            let pages = cpu::encode(&codec, Elements::F16(&data), &starts).expect("pages");
            group.bench_function(BenchmarkId::new("decode", &id), |b| {
                b.iter(|| cpu::decode(&codec, black_box(&pages)))
            });
        }
    }
}

/// A device of the default adapter (`WGPU_ADAPTER_NAME` and the like choose); none without one.
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
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: wgkv::gpu::required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
    println!("GPU: {}", adapter.get_info().name);
    Context::new(&device, &queue, &ContextDescriptor::default()).ok()
}

/// Submits `times` copies of a recording and waits: what one costs is the slope.
fn submit(
    context: &Context,
    times: u64,
    record: impl Fn(&mut Recorder<'_>) -> wgkv::Result<()>,
) -> Duration {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    for _ in 0..times {
        record(&mut recorder).expect("a recording");
    }
    recorder.finish().expect("a recording");
    let start = std::time::Instant::now();
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    start.elapsed()
}

fn on_gpu(criterion: &mut Criterion) {
    let Some(context) = context() else { return };
    let mut group = criterion.benchmark_group("nsnquant/gpu");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    let data = rows(4096);
    let total = data.len() / HEAD_DIM;
    let starts = starts(total);
    let pages = starts.len();
    group.throughput(Throughput::Bytes((data.len() * 2) as u64));
    let input = context.upload("rows", bytemuck::cast_slice(&data)).expect("a buffer");
    let first = context.upload("starts", bytemuck::cast_slice(&starts)).expect("a buffer");
    for bits in [1, 2] {
        let device = DeviceCodec::new(&context, codec(bits)).expect("a codec");
        let words = (pages * device.layout().words() * 4) as u64;
        let packed = context.create("pages", words).expect("a buffer");
        let (input, first) = (Slice::all(&input), Slice::all(&first));
        group.bench_function(BenchmarkId::new("encode", format!("{bits}bit/4096")), |b| {
            b.iter_custom(|times| {
                submit(&context, times, |rec| {
                    let out = Slice::all(&packed);
                    gpu::encode(rec, &device, input, Dtype::F16, total, first, pages, out)
                })
            })
        });
        let restored = context.create("restored", (data.len() * 2) as u64).expect("a buffer");
        group.bench_function(BenchmarkId::new("decode", format!("{bits}bit/4096")), |b| {
            b.iter_custom(|times| {
                submit(&context, times, |rec| {
                    let (packed, out) = (Slice::all(&packed), Slice::all(&restored));
                    gpu::decode(rec, &device, packed, pages, first, out, Dtype::F16, total)
                })
            })
        });
    }
}

criterion_group!(benches, on_cpu, on_gpu);
criterion_main!(benches);
