//! Cases that several files of this target test with.
#![allow(dead_code, reason = "each file uses its part")]

use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::Value;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::cpu::Kept;
use wgkv::nestedkv::{EvictConfig, ScoreConfig, gpu};
use wgkv::primitives::order::order_key;
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

/// Ends of lines of scores, as the GPU path keeps them.
pub fn extremes(scores: &[f32], tokens: usize) -> Vec<[u32; 2]> {
    let highest = |keys: &mut dyn Iterator<Item = u32>| keys.max().unwrap_or(0);
    scores
        .chunks(tokens)
        .map(|line| {
            let keys = || line.iter().map(|&score| order_key(score));
            [highest(&mut keys()), highest(&mut keys().map(|key| !key))]
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

/// A tensor of random shape, type and content.
#[derive(Clone, Debug)]
pub struct Problem {
    pub rows: usize,
    pub tokens: usize,
    pub dim: usize,
    pub dtype: Dtype,
    pub seed: u32,
    pub kind: Kind,
}

/// What the rows of a [`Problem`] are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Plain,
    /// A common offset, so that means are large.
    Offset,
    Constant,
    Zero,
    /// Every token occurs several times.
    Duplicated,
    /// As large as the type allows.
    Huge,
    /// As small as the type allows.
    Tiny,
    /// Some rows zero, some huge, some tiny, some NaN or Inf.
    Mixed,
}

/// Every head dimension that is tested by name.
pub const DIMS: [usize; 12] = [16, 32, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];

impl Problem {
    pub fn keys(&self) -> Data {
        let Self { rows, tokens, dim, .. } = *self;
        let mut values = uniform(self.seed, rows * tokens * dim);
        let (huge, tiny) = match self.dtype {
            Dtype::F16 => (6e4, 3e-7),
            Dtype::F32 | Dtype::Bf16 => (3e38, 1e-38),
        };
        for row in 0..rows * tokens {
            let token = row % tokens;
            let key = &mut values[row * dim..(row + 1) * dim];
            match self.kind {
                Kind::Plain => {}
                Kind::Offset => key.iter_mut().for_each(|x| *x += 0.7),
                Kind::Constant => key.fill(0.5),
                Kind::Zero => key.fill(0.0),
                Kind::Duplicated => {
                    key.copy_from_slice(&uniform(self.seed + token as u32 % 7, dim))
                }
                Kind::Huge => key.iter_mut().for_each(|x| *x *= huge),
                Kind::Tiny => key.iter_mut().for_each(|x| *x *= tiny),
                Kind::Mixed => match token % 11 {
                    3 => key.fill(0.0),
                    5 => key.iter_mut().for_each(|x| *x *= huge),
                    7 => key.iter_mut().for_each(|x| *x *= tiny),
                    8 => key[token % dim] = f32::NAN,
                    9 => key[dim - 1] = f32::NEG_INFINITY,
                    _ => {}
                },
            }
        }
        Data::new(&values, self.dtype)
    }

    /// The keys in device memory.
    pub fn upload(&self) -> wgkv::wgpu::Buffer {
        support::context().upload("keys", self.keys().view().bytes()).expect("a buffer")
    }

    pub fn tensor<'a>(&self, buffer: &'a wgkv::wgpu::Buffer) -> DeviceTensor<'a> {
        let Self { rows, tokens, dim, dtype, .. } = *self;
        DeviceTensor::new("keys", Slice::all(buffer), dtype, rows, tokens, dim).expect("a tensor")
    }
}

/// Problems whose size the software adapter can take.
pub fn problem() -> impl Strategy<Value = Problem> {
    let tokens = prop_oneof![
        4 => 1usize..200,
        2 => prop::sample::select(vec![1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257]),
        1 => 200usize..=3000,
    ];
    let kind = prop_oneof![
        3 => Just(Kind::Plain),
        2 => Just(Kind::Offset),
        1 => Just(Kind::Constant),
        1 => Just(Kind::Zero),
        1 => Just(Kind::Duplicated),
        1 => Just(Kind::Huge),
        1 => Just(Kind::Tiny),
        3 => Just(Kind::Mixed),
    ];
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16]);
    let dim = prop::sample::select(DIMS.to_vec());
    (1usize..=9, tokens, dim, dtype, 0u32..1000, kind).prop_map(
        |(rows, tokens, dim, dtype, seed, kind)| {
            // Long rows come narrow and few.
            let rows = rows.min(1 + 60_000 / (tokens * dim));
            Problem { rows, tokens, dim, dtype, seed, kind }
        },
    )
}

/// Parameters over all of their range that means something.
pub fn config() -> impl Strategy<Value = ScoreConfig> {
    let window = prop_oneof![
        4 => Just(64u32),
        2 => 1u32..100,
        1 => prop::sample::select(vec![1, 2, 255, 256, 257, 300, 1000, u32::MAX]),
    ];
    (
        window,
        -5.0f32..10.0,
        -1.0f32..2.0,
        -20.0f32..20.0,
        [0.01f32..2.0, 0.01f32..2.0, 0.01f32..2.0],
        any::<bool>(),
    )
        .prop_map(|(window, beta, tau, kappa, prior, rectify)| ScoreConfig {
            window,
            beta,
            tau,
            kappa,
            prior,
            rectify,
        })
}

/// Few cases, since each goes through a software adapter.
pub fn few(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 200, ..ProptestConfig::default() }
}

/// Uploads numbers of any plain type.
pub fn upload<T: bytemuck::NoUninit>(values: &[T]) -> wgkv::wgpu::Buffer {
    support::context().upload("numbers", bytemuck::cast_slice(values)).expect("a buffer")
}

/// Largest difference between two lists.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
