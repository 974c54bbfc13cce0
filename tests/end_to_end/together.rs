//! Layers that share a submit.

use wgkv::attention::AttendConfig;
use wgkv::attention::gpu::{DeviceCacheView, DeviceQueries, attend};
use wgkv::gpu::{DeviceTensor, Readback, Recorder, Slice};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nestedkv::gpu::compress_prefill;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::gpu::{DeviceCodec, encode};
use wgkv::nsnquant::{Codebook, Codec};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::support;

const CHUNK: usize = 32;

/// A layer of one head in device memory.
struct Layer {
    tokens: usize,
    dim: usize,
    keys: wgpu::Buffer,
    values: wgpu::Buffer,
    queries: wgpu::Buffer,
    starts: wgpu::Buffer,
    codec: DeviceCodec,
}

impl Layer {
    fn new(tokens: usize, dim: usize, seed: usize) -> Self {
        let context = support::context();
        let data = |seed: usize, count: usize| {
            let values: Vec<f32> =
                (0..count).map(|i| (((i + 7919 * seed) as f32) * 12.9898).sin()).collect();
            context.upload("data", bytemuck::cast_slice(&values)).expect("a buffer")
        };
        let layout = PageLayout::new("data", dim, Bits::Two, CHUNK).expect("a layout");
        let codec = Codec::new(layout, Codebook::builtin()).expect("a codec");
        let starts = bytemuck::cast_slice(&[0u32, 32]).to_vec();
        Self {
            tokens,
            dim,
            keys: data(seed, tokens * dim),
            values: data(seed + 1, tokens * dim),
            queries: data(seed + 2, 3 * dim),
            starts: context.upload("starts", &starts).expect("a buffer"),
            codec: DeviceCodec::new(context, codec).expect("a codec"),
        }
    }

    /// Records the job: evict half, attend on what stays, pack the first chunks.
    fn record(&self, rec: &mut Recorder<'_>) -> wgkv::Result<Vec<Readback>> {
        let tensor = |name, buffer| {
            DeviceTensor::new(name, Slice::all(buffer), Dtype::F32, 1, self.tokens, self.dim)
        };
        let config = EvictConfig::new(Budget::Uniform(self.tokens as u32 / 2));
        let (keys, values) = (tensor("keys", &self.keys)?, tensor("values", &self.values)?);
        let evicted = compress_prefill(rec, &keys, &values, &config)?;
        let view = DeviceCacheView {
            kv_rows: 1,
            head_dim_k: self.dim,
            head_dim_v: self.dim,
            raw_tokens: evicted.kept.total as usize,
            key_dtype: Dtype::F16,
            value_dtype: Dtype::F16,
            raw_offsets: Slice::all(&evicted.kept.offsets),
            raw_keys: Slice::all(&evicted.keys.rows),
            raw_values: Slice::all(&evicted.values.rows),
            raw_positions: None,
            packed: None,
        };
        let queries = DeviceQueries {
            data: Slice::all(&self.queries),
            dtype: Dtype::F32,
            batch: 1,
            heads: 3,
            tokens: 1,
            head_dim: self.dim,
        };
        let attended = attend(rec, &view, &queries, &AttendConfig::default())?;
        let size = (2 * self.codec.layout().words() * 4) as u64;
        let pages = rec.context().create("pages", size)?;
        let (data, starts) = (keys.slice(), Slice::all(&self.starts));
        let out = Slice::all(&pages);
        encode(rec, &self.codec, data, Dtype::F32, self.tokens, starts, 2, out)?;
        [&evicted.scores.score, &evicted.kept.positions, &evicted.keys.rows, &attended.out, &pages]
            .into_iter()
            .map(|buffer| rec.read_back(Slice::all(buffer)))
            .collect()
    }
}

fn results(layers: &[&Layer]) -> Vec<Vec<Vec<u8>>> {
    let read = support::run(|rec| layers.iter().map(|layer| layer.record(rec)).collect());
    let read: Vec<Vec<Readback>> = read.expect("recorded");
    read.into_iter().map(|layer| layer.into_iter().map(support::wait).collect()).collect()
}

/// cubecl PR 83, PR 814, burn PR 5181: parameters of one dispatch that reach another of the same
/// submit, now and then.
#[test]
fn layers_of_one_submit_are_what_they_are_alone_each_time() {
    let layers = [(64, 64), (65, 128), (4097, 80)]
        .into_iter()
        .enumerate()
        .map(|(number, (tokens, dim))| Layer::new(tokens, dim, 10 * number))
        .collect::<Vec<_>>();
    let layers: Vec<&Layer> = layers.iter().collect();
    let alone: Vec<Vec<Vec<u8>>> = layers.iter().flat_map(|layer| results(&[layer])).collect();
    for repeat in 0..50 {
        assert!(results(&layers) == alone, "repeat {repeat}");
    }
}
