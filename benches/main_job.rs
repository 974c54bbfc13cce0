//! The main job on the shipped sample, a real model's cache: of each layer half of the tokens are
//! evicted, the rest is packed to 2 bits and 64 queries attend to it, on the CPU.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use safetensors::SafeTensors;
use wgkv::attention::{AttendConfig, CacheView, PackedView, Queries, cpu::attend};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nestedkv::{Budget, EvictConfig, cpu::compress_prefill};
use wgkv::nsnquant::{Codebook, Codec, cpu::encode};
use wgkv::shape::{Elements, Tensor};

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

fn main_job(c: &mut Criterion) {
    let layers = layers();
    let layout = PageLayout::new("dim", layers[0].dim, Bits::Two, CHUNK).expect("a layout");
    let codec = Codec::new(layout, Arc::clone(&Codebook::builtin())).expect("a codec");
    let mut group = c.benchmark_group("main job");
    group.sample_size(20);
    group.bench_function("cpu", |b| {
        b.iter(|| layers.iter().map(|layer| on_cpu(black_box(layer), &codec)).collect::<Vec<_>>());
    });
    group.finish();
}

criterion_group!(benches, main_job);
criterion_main!(benches);
