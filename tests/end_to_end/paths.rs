//! The job on each path: what a caller of the library writes.

use half::f16;
use wgkv::attention::gpu::{self as device_attention, DeviceCacheView, DevicePackedView};
use wgkv::attention::{self, AttendConfig, CacheView, PackedView, Queries};
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nestedkv::cpu::Kept;
use wgkv::nestedkv::{self, EvictConfig};
use wgkv::nsnquant::gpu::DeviceCodec;
use wgkv::nsnquant::{self, Codebook, Codec};
use wgkv::primitives::gpu::gather;
use wgkv::shape::{Dtype, Elements};

use crate::sample::{DIM, HEADS, KV_HEADS, Layer, QUERIES, TOKENS};
use crate::support;

pub const CHUNK: usize = 64;
const SINKS: usize = 4;
const RECENT: usize = 16;

/// What stays of a prompt.
pub struct Evicted {
    pub kept: Kept,
    pub keys: Vec<f16>,
    pub values: Vec<f16>,
}

/// Which of the kept rows are packed, and which stay raw.
pub struct Split {
    /// First kept row of each page.
    pub starts: Vec<u32>,
    pub page_offsets: Vec<u32>,
    /// Kept rows that stay raw.
    pub raw: Vec<u32>,
    pub raw_offsets: Vec<u32>,
}

impl Split {
    /// The sinks raw, then whole chunks while the newest rows stay raw.
    pub fn new(offsets: &[u32]) -> Self {
        let mut split = Self {
            starts: Vec::new(),
            page_offsets: vec![0],
            raw: Vec::new(),
            raw_offsets: vec![0],
        };
        for row in offsets.windows(2) {
            let len = (row[1] - row[0]) as usize;
            let pages = len.saturating_sub(SINKS + RECENT) / CHUNK;
            let packed = row[0] + SINKS as u32..row[0] + (SINKS + CHUNK * pages) as u32;
            split.starts.extend(packed.clone().step_by(CHUNK));
            split.raw.extend((row[0]..row[1]).filter(|at| !packed.contains(at)));
            split.page_offsets.push(split.starts.len() as u32);
            split.raw_offsets.push(split.raw.len() as u32);
        }
        split
    }

    /// Positions of the raw rows and of the rows in pages.
    pub fn positions(&self, kept: &Kept) -> [Vec<u32>; 2] {
        let at = |row: u32| kept.positions[row as usize];
        let pages = self.starts.iter().flat_map(|start| *start..start + CHUNK as u32);
        [self.raw.iter().copied().map(at).collect(), pages.map(at).collect()]
    }

    pub fn raw_rows(&self, data: &[f16]) -> Vec<f16> {
        self.raw.iter().flat_map(|row| &data[*row as usize * DIM..][..DIM]).copied().collect()
    }
}

/// Pages and attention over them and the raw rows.
#[derive(Debug, PartialEq)]
pub struct Packed {
    pub key_pages: Vec<u32>,
    pub value_pages: Vec<u32>,
    /// `[HEADS, QUERIES, DIM]`.
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
}

pub fn codec(bits: u32) -> Codec {
    let bits = Bits::new("bits", bits).expect("1 or 2");
    let layout = PageLayout::new("data", DIM, bits, CHUNK).expect("a layout");
    Codec::new(layout, Codebook::builtin()).expect("a codec")
}

pub fn attend_config() -> AttendConfig {
    AttendConfig { causal: Some((TOKENS - QUERIES) as u32), ..AttendConfig::default() }
}

pub fn queries(data: &[f16]) -> Queries<'_> {
    let data = Elements::F16(data);
    Queries { data, batch: 1, heads: HEADS, tokens: QUERIES, head_dim: DIM }
}

/// A path through the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Cpu,
    Gpu,
}

pub const PATHS: [Path; 2] = [Path::Cpu, Path::Gpu];

impl Path {
    pub fn evict(self, layer: &Layer, config: &EvictConfig) -> Evicted {
        let [keys, values] = layer.tensors();
        if self == Self::Cpu {
            let done = nestedkv::cpu::compress_prefill(&keys, &values, config).expect("evicted");
            return Evicted { kept: done.kept, keys: done.keys, values: done.values };
        }
        let context = support::context();
        let buffers = [&layer.keys, &layer.values]
            .map(|data| context.upload("input", bytemuck::cast_slice(data)).expect("a buffer"));
        let [keys, values] =
            [("keys", &buffers[0]), ("values", &buffers[1])].map(|(name, data)| {
                DeviceTensor::new(name, Slice::all(data), Dtype::F16, KV_HEADS, TOKENS, DIM)
                    .expect("a tensor")
            });
        let (done, parts) = support::run(|rec| {
            let done = nestedkv::gpu::compress_prefill(rec, &keys, &values, config)?;
            let parts = [
                &done.kept.offsets,
                &done.kept.positions,
                &done.keys.rows,
                &done.values.rows,
                &done.keys.beyond,
                &done.values.beyond,
            ];
            let mut read = Vec::new();
            for part in parts {
                read.push(rec.read_back(Slice::all(part))?);
            }
            Ok((done, read))
        })
        .expect("evicted");
        let mut parts = parts.into_iter().map(support::wait);
        let mut next = || parts.next().expect("six parts");
        let offsets = bytemuck::pod_collect_to_vec(&next());
        let mut positions: Vec<u32> = bytemuck::pod_collect_to_vec(&next());
        positions.truncate(done.kept.total as usize);
        let rows = |bytes: Vec<u8>| {
            let mut rows: Vec<f16> = bytemuck::pod_collect_to_vec(&bytes);
            rows.truncate(done.kept.total as usize * DIM);
            rows
        };
        let (keys, values) = (rows(next()), rows(next()));
        for _ in 0..2 {
            assert_eq!(nestedkv::gpu::first_beyond(&next()).expect("a word"), None);
        }
        let kept = Kept { offsets, positions, sinks_only: done.kept.sinks_only };
        Evicted { kept, keys, values }
    }

    pub fn pack_and_attend(self, layer: &Layer, evicted: &Evicted, bits: u32) -> Packed {
        let split = Split::new(&evicted.kept.offsets);
        let codec = codec(bits);
        match self {
            Self::Cpu => on_cpu(layer, evicted, &split, &codec),
            Self::Gpu => on_gpu(layer, evicted, &split, &codec),
        }
    }
}

fn on_cpu(layer: &Layer, evicted: &Evicted, split: &Split, codec: &Codec) -> Packed {
    let pages =
        |data| nsnquant::cpu::encode(codec, Elements::F16(data), &split.starts).expect("pages");
    let (key_pages, value_pages) = (pages(&evicted.keys), pages(&evicted.values));
    let (raw_keys, raw_values) = (split.raw_rows(&evicted.keys), split.raw_rows(&evicted.values));
    let [raw_positions, page_positions] = split.positions(&evicted.kept);
    let view = CacheView {
        kv_rows: KV_HEADS,
        head_dim_k: DIM,
        head_dim_v: DIM,
        raw_offsets: &split.raw_offsets,
        raw_keys: Elements::F16(&raw_keys),
        raw_values: Elements::F16(&raw_values),
        raw_positions: &raw_positions,
        packed: Some(PackedView {
            key_scales: None,
            keys: codec,
            values: codec,
            page_offsets: &split.page_offsets,
            key_pages: &key_pages,
            value_pages: &value_pages,
            page_positions: &page_positions,
        }),
    };
    let attended = attention::cpu::attend(&view, &queries(&layer.queries), &attend_config());
    let attention::cpu::Attended { out, lse } = attended.expect("attention");
    Packed { key_pages, value_pages, out, lse }
}

/// Packs, copies the raw rows and attends in one submit.
fn on_gpu(layer: &Layer, evicted: &Evicted, split: &Split, codec: &Codec) -> Packed {
    let context = support::context();
    let upload = |bytes: &[u8]| context.upload("test", bytes).expect("a buffer");
    let words = |words: &[u32]| upload(bytemuck::cast_slice(words));
    let device = DeviceCodec::new(context, codec.clone()).expect("a codec");
    let buffers = [&evicted.keys, &evicted.values].map(|rows| upload(bytemuck::cast_slice(rows)));
    let total = evicted.kept.positions.len();
    let kept = [&buffers[0], &buffers[1]].map(|buffer| {
        DeviceTensor::new("kept rows", Slice::all(buffer), Dtype::F16, 1, total, DIM)
            .expect("a tensor")
    });
    let (starts, raw) = (words(&split.starts), words(&split.raw));
    let (raw_offsets, page_offsets) = (words(&split.raw_offsets), words(&split.page_offsets));
    let [raw_positions, page_positions] = split.positions(&evicted.kept).map(|list| words(&list));
    let query = upload(bytemuck::cast_slice(&layer.queries));
    let page_count = split.starts.len();
    let size = (page_count * codec.layout().words() * 4) as u64;
    let pages = [(); 2].map(|()| context.create("pages", size).expect("a buffer"));
    let read = support::run(|rec| {
        let mut copies = Vec::new();
        for (tensor, pages) in kept.iter().zip(&pages) {
            let (data, starts) = (tensor.slice(), Slice::all(&starts));
            let out = Slice::all(pages);
            nsnquant::gpu::encode(rec, &device, data, Dtype::F16, total, starts, page_count, out)?;
            copies.push(gather::record(rec, tensor, Slice::all(&raw), split.raw.len() as u64)?);
        }
        let view = DeviceCacheView {
            kv_rows: KV_HEADS,
            head_dim_k: DIM,
            head_dim_v: DIM,
            raw_tokens: split.raw.len(),
            key_dtype: Dtype::F16,
            value_dtype: Dtype::F16,
            raw_offsets: Slice::all(&raw_offsets),
            raw_keys: Slice::all(&copies[0].rows),
            raw_values: Slice::all(&copies[1].rows),
            raw_positions: Some(Slice::all(&raw_positions)),
            packed: Some(DevicePackedView {
                key_scales: None,
                keys: &device,
                values: &device,
                pages: page_count,
                page_offsets: Slice::all(&page_offsets),
                key_pages: Slice::all(&pages[0]),
                value_pages: Slice::all(&pages[1]),
                page_positions: Some(Slice::all(&page_positions)),
            }),
        };
        let queries = device_attention::DeviceQueries {
            data: Slice::all(&query),
            dtype: Dtype::F16,
            batch: 1,
            heads: HEADS,
            tokens: QUERIES,
            head_dim: DIM,
        };
        let attended = device_attention::attend(rec, &view, &queries, &attend_config())?;
        let mut read = Vec::new();
        for part in [&pages[0], &pages[1], &attended.out, &attended.lse] {
            read.push(rec.read_back(Slice::all(part))?);
        }
        Ok(read)
    });
    let read = read.expect("packed").into_iter().map(support::wait).collect::<Vec<_>>();
    Packed {
        key_pages: bytemuck::pod_collect_to_vec(&read[0]),
        value_pages: bytemuck::pod_collect_to_vec(&read[1]),
        out: bytemuck::pod_collect_to_vec(&read[2]),
        lse: bytemuck::pod_collect_to_vec(&read[3]),
    }
}
