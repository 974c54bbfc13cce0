//! NestedKV stage by stage and as a job, on the CPU and on the adapter at hand: 8 heads of 128 channels,
//! f16, budget 512. A measurement on the GPU is one submit and the wait for it.

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig, cpu, gpu};
use wgkv::shape::{Dtype, Elements, Tensor};

const HEADS: usize = 8;
const DIM: usize = 128;

fn uniform(seed: u32, len: usize) -> Vec<f16> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect()
}

fn tensor(data: &[f16], tokens: usize) -> Tensor<'_> {
    Tensor::new("keys", Elements::F16(data), HEADS, tokens, DIM).expect("a tensor")
}

fn nestedkv(c: &mut Criterion) {
    let mut group = c.benchmark_group("nestedkv");
    group.sample_size(20);
    for tokens in [1024, 4096, 16384] {
        let keys = uniform(1, HEADS * tokens * DIM);
        let values = uniform(2, HEADS * tokens * DIM);
        let (keys, values) = (tensor(&keys, tokens), tensor(&values, tokens));
        let config = EvictConfig::new(Budget::Uniform(512));
        let adaptive = EvictConfig::new(Budget::Adaptive { per_head: 512, heads: HEADS });
        group.throughput(Throughput::Elements((HEADS * tokens) as u64));
        group.bench_function(BenchmarkId::new("evict", tokens), |b| {
            b.iter(|| cpu::compress_prefill(black_box(&keys), &values, &config).expect("evicted"));
        });
        group.bench_function(BenchmarkId::new("score", tokens), |b| {
            b.iter(|| {
                cpu::score_batched(black_box(&keys), &ScoreConfig::default()).expect("scores")
            });
        });
        let scores = cpu::score_batched(&keys, &ScoreConfig::default()).expect("scores");
        let [s, e, k] = &scores.scales;
        group.bench_function(BenchmarkId::new("blend", tokens), |b| {
            b.iter(|| {
                cpu::head_adaptive_blend_batched([s, e, k], HEADS, 3.0, [0.4, 0.4, 0.2])
                    .expect("a blend")
            });
        });
        group.bench_function(BenchmarkId::new("gate", tokens), |b| {
            b.iter(|| {
                cpu::surprise_gated_score_batched([s, e, k], &scores.blend, HEADS, 0.6, 10.0, false)
                    .expect("scores")
            });
        });
        for (name, config) in [("keep", &config), ("keep adaptive", &adaptive)] {
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| {
                    cpu::keep(black_box(&scores.score), HEADS, tokens, config).expect("kept")
                });
            });
        }
        let kept = cpu::keep(&scores.score, HEADS, tokens, &config).expect("kept");
        group.bench_function(BenchmarkId::new("gather", tokens), |b| {
            b.iter(|| cpu::gather(black_box(&values), &kept).expect("rows"));
        });
    }
    group.finish();
}

fn on_gpu(c: &mut Criterion) {
    let mut group = c.benchmark_group("nestedkv gpu");
    group.sample_size(10);
    for tokens in [1024, 4096, 16384] {
        let buffers = [1, 2].map(|seed| {
            let data = uniform(seed, HEADS * tokens * DIM);
            support::context().upload("data", bytemuck::cast_slice(&data)).expect("a buffer")
        });
        let [keys, values] = [&buffers[0], &buffers[1]].map(|buffer| {
            DeviceTensor::new("data", Slice::all(buffer), Dtype::F16, HEADS, tokens, DIM)
                .expect("a tensor")
        });
        let config = EvictConfig::new(Budget::Uniform(512));
        let adaptive = EvictConfig::new(Budget::Adaptive { per_head: 512, heads: HEADS });
        group.throughput(Throughput::Elements((HEADS * tokens) as u64));
        for (name, config) in [("evict", &config), ("evict adaptive", &adaptive)] {
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| {
                    support::run(|rec| gpu::compress_prefill(rec, &keys, &values, config))
                        .expect("evicted")
                });
            });
        }
        let scores = support::run(|rec| gpu::score(rec, &keys, &config.score)).expect("scores");
        group.bench_function(BenchmarkId::new("score", tokens), |b| {
            b.iter(|| support::run(|rec| gpu::score(rec, &keys, &config.score)).expect("scores"));
        });
        let state = gpu::NestedKvState::new(support::context(), HEADS, DIM, DIM, config);
        let state = state.expect("a state");
        group.bench_function(BenchmarkId::new("append to a prompt", tokens), |b| {
            b.iter(|| {
                let mut state = state.clone();
                support::run(|rec| {
                    state.append_prefill(rec, &keys, &values)?;
                    state.append_prefill(rec, &keys, &values)
                })
                .expect("appended")
            });
        });
        let scores = Slice::all(&scores.score);
        for (name, config) in [("keep", &config), ("keep adaptive", &adaptive)] {
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| {
                    support::run(|rec| gpu::keep(rec, scores, HEADS, tokens, config)).expect("kept")
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, nestedkv, on_gpu);
criterion_main!(benches);
