//! Cases that several files of this target test with.
#![allow(dead_code, reason = "each file uses its part")]

use half::{bf16, f16};
use serde_json::Value;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::cpu::Kept;
use wgkv::nestedkv::{EvictConfig, ScoreConfig, gpu};
use wgkv::shape::{Dtype, Elements, Tensor};

use crate::support::{self, golden::Golden};

/// Keys or values in one of the three types.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    /// Rounds f32 values to a type.
    pub fn new(values: &[f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values.to_vec()),
            Dtype::F16 => Self::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
            Dtype::Bf16 => Self::Bf16(values.iter().map(|&x| bf16::from_f32(x)).collect()),
        }
    }

    pub fn view(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }

    pub fn f64s(&self) -> Vec<f64> {
        let view = self.view();
        (0..view.len()).map(|i| f64::from(view.get(i))).collect()
    }

    pub fn tensor(&self, rows: usize, tokens: usize, dim: usize) -> Tensor<'_> {
        Tensor::new("keys", self.view(), rows, tokens, dim).expect("a tensor")
    }
}

/// A case of `nestedkv_cases.safetensors`.
pub struct Case {
    pub name: String,
    pub rows: usize,
    pub tokens: usize,
    pub dim: usize,
    pub keys: Data,
    pub config: ScoreConfig,
    pub index: Value,
}

/// Every case that the file at hand holds.
pub fn cases(file: &Golden, index: &Value) -> Vec<Case> {
    let list = index["nestedkv"].as_array().expect("cases");
    let mut cases = Vec::new();
    for case in list {
        let name = case["case"].as_str().expect("a name").to_owned();
        let tensor = format!("{name}/keys");
        if !file.has(&tensor) {
            continue;
        }
        let shape = file.shape(&tensor);
        let values: Vec<f32> = file.numbers(&tensor).into_iter().map(|x| x as f32).collect();
        let dtype = match file.raw(&tensor).0 {
            safetensors::Dtype::F16 => Dtype::F16,
            _ => Dtype::F32,
        };
        let number = |name: &str| case["hyper"][name].as_f64().expect("a number") as f32;
        cases.push(Case {
            rows: shape[0],
            tokens: shape[1],
            dim: shape[2],
            keys: Data::new(&values, dtype),
            config: ScoreConfig {
                window: number("window") as u32,
                beta: number("beta"),
                tau: number("tau"),
                kappa: number("kappa"),
                prior: core::array::from_fn(|k| {
                    case["hyper"]["prior"][k].as_f64().expect("a prior") as f32
                }),
                rectify: false,
            },
            index: case.clone(),
            name,
        });
    }
    cases
}

/// fmix32, the finaliser of the public 32-bit murmur hash.
fn fmix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Uniform values in [-1, 1), the same on every machine.
pub fn uniform(seed: u32, len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| {
            fmix(i.wrapping_add(0x9e37_79b9u32.wrapping_mul(seed))) as f32 / (1u64 << 31) as f32
                - 1.0
        })
        .collect()
}

/// Scores of the GPU path, downloaded.
pub struct GpuScores {
    pub score: Vec<f32>,
    pub scales: [Vec<f32>; 3],
    pub blend: Vec<f32>,
}

/// Uploads keys, records, waits and downloads the scores.
pub fn gpu_scores(
    keys: &Data,
    rows: usize,
    tokens: usize,
    dim: usize,
    config: &ScoreConfig,
) -> GpuScores {
    let context = support::context();
    let buffer = context.upload("keys", keys.view().bytes()).expect("a buffer");
    let dtype = keys.view().dtype();
    let tensor =
        DeviceTensor::new("keys", Slice::all(&buffer), dtype, rows, tokens, dim).expect("a tensor");
    let scores = support::run(|rec| gpu::score(rec, &tensor, config)).expect("scores");
    let scales: Vec<f32> = support::download_as(&scores.scales);
    let part = |k: usize| scales[k * rows * tokens..(k + 1) * rows * tokens].to_vec();
    GpuScores {
        score: support::download_as(&scores.score),
        scales: [part(0), part(1), part(2)],
        blend: support::download_as(&scores.blend),
    }
}

/// Uploads scores, records the selection, waits and downloads it.
pub fn gpu_keep(scores: &[f32], rows: usize, tokens: usize, config: &EvictConfig) -> Kept {
    let buffer =
        support::context().upload("scores", bytemuck::cast_slice(scores)).expect("a buffer");
    let kept = support::run(|rec| gpu::keep(rec, Slice::all(&buffer), rows, tokens, config))
        .expect("a selection");
    let offsets: Vec<u32> = support::download_as(&kept.offsets);
    let mut positions: Vec<u32> = support::download_as(&kept.positions);
    positions.truncate(kept.total as usize);
    let mut sources: Vec<u32> = support::download_as(&kept.sources);
    sources.truncate(kept.total as usize);
    let budgets: Vec<u32> = support::download_as(&kept.budgets);
    for row in 0..rows {
        assert_eq!(offsets[row + 1] - offsets[row], budgets[row]);
        for at in offsets[row] as usize..offsets[row + 1] as usize {
            assert_eq!(sources[at], (row * tokens) as u32 + positions[at]);
        }
    }
    Kept { offsets, positions, sinks_only: kept.sinks_only }
}
