//! The cache of one layer, 8 heads of 128 channels at 2 bits: a prompt of 4,096 tokens, 256 decoded
//! tokens one by one, a fetch.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use wgkv::cache::{CacheConfig, cpu, gpu};
use wgkv::gpu::{Context, ContextDescriptor, DeviceTensor, Recorder, Slice};
use wgkv::layout::Bits;
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements, Tensor};
use wgkv::wgpu;

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const PROMPT: usize = 4096;
const STEPS: usize = 256;

fn config() -> CacheConfig {
    CacheConfig {
        profile: wgkv::layout::Profile::Compat,
        key_scale: false,
        rope: None,
        signs: None,
        rows: HEADS,
        head_dim_k: HEAD_DIM,
        head_dim_v: HEAD_DIM,
        k_bits: Bits::Two,
        v_bits: Bits::Two,
        chunk: 64,
        sinks: 4,
        recent: 16,
        dtype: Dtype::F16,
        codebook: Codebook::builtin(),
    }
}

fn data(tokens: usize) -> Vec<f16> {
    let mut state = 1u64;
    (0..HEADS * tokens * HEAD_DIM)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect()
}

fn tensor(data: &[f16], tokens: usize) -> Tensor<'_> {
    Tensor::new("tensor", Elements::F16(data), HEADS, tokens, HEAD_DIM).expect("a tensor")
}

fn on_cpu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cache/cpu");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let (prompt, token) = (data(PROMPT), data(1));
    let (prompt, token) = (tensor(&prompt, PROMPT), tensor(&token, 1));
    let empty = cpu::LayerCache::new(config()).expect("a cache");
    group.bench_function("prompt/4096", |b| {
        b.iter(|| empty.fork().append(black_box(&prompt), &prompt))
    });
    let mut filled = empty.fork();
    filled.append(&prompt, &prompt).expect("an append");
    group.bench_function("decode/256", |b| {
        b.iter(|| {
            let mut cache = filled.fork();
            (0..STEPS).try_for_each(|_| cache.append(black_box(&token), &token))
        })
    });
    group.bench_function("fetch/4096", |b| b.iter(|| black_box(&filled).fetch()));
}

/// A device of the default adapter; none without one.
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

/// Records, submits and waits.
fn run(context: &Context, record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<()>) {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    record(&mut recorder).expect("a recording");
    recorder.finish().expect("a recording");
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
}

fn on_gpu(criterion: &mut Criterion) {
    let Some(context) = context() else { return };
    let mut group = criterion.benchmark_group("cache/gpu");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let upload =
        |tokens| context.upload("tokens", bytemuck::cast_slice(&data(tokens))).expect("a buffer");
    let (prompt, token) = (upload(PROMPT), upload(1));
    let tensor = |buffer, tokens| {
        let slice = Slice::all(buffer);
        DeviceTensor::new("tensor", slice, Dtype::F16, HEADS, tokens, HEAD_DIM).expect("a tensor")
    };
    let (prompt, token) = (tensor(&prompt, PROMPT), tensor(&token, 1));
    let empty = gpu::LayerCache::new(&context, config()).expect("a cache");
    let timed = |times: u64, work: &dyn Fn()| {
        let start = Instant::now();
        (0..times).for_each(|_| work());
        start.elapsed()
    };
    group.bench_function("prompt/4096", |b| {
        b.iter_custom(|times| {
            timed(times, &|| run(&context, |rec| empty.fork().append(rec, &prompt, &prompt)))
        })
    });
    let mut filled = empty.fork();
    run(&context, |rec| filled.append(rec, &prompt, &prompt));
    group.bench_function("decode/256", |b| {
        b.iter_custom(|times| {
            timed(times, &|| {
                let mut cache = filled.fork();
                for _ in 0..STEPS {
                    run(&context, |rec| cache.append(rec, &token, &token));
                }
            })
        })
    });
    group.bench_function("fetch/4096", |b| {
        b.iter_custom(|times| timed(times, &|| run(&context, |rec| filled.fetch(rec).map(drop))))
    });
}

criterion_group!(benches, on_cpu, on_gpu);
criterion_main!(benches);
