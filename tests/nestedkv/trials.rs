//! Bugs that others have had, as far as they concern the choice of tokens.

use half::f16;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig, cpu, gpu};
use wgkv::shape::{Dtype, Elements, Tensor};

use super::cases::{Data, difference, gpu_keep, gpu_scores, uniform};
use crate::support;

/// NaN in one head leaves every other head as it was, and its neighbours as if it were 0.
#[test]
fn a_bad_key_does_not_spread() {
    let (rows, tokens, dim) = (3, 300, 64);
    let clean = uniform(31, rows * tokens * dim);
    let place = (tokens + 50) * dim + 7;
    let mut bad = clean.clone();
    bad[place] = f32::NAN;
    let mut zeroed = clean.clone();
    zeroed[place] = 0.0;
    let config = ScoreConfig::default();
    let on_cpu = |x: &[f32]| {
        let data = Data::new(x, Dtype::F16);
        cpu::score_batched(&data.tensor(rows, tokens, dim), &config).expect("scores").score
    };
    let on_gpu =
        |x: &[f32]| gpu_scores(&Data::new(x, Dtype::F16), rows, tokens, dim, &config).score;
    for [clean, bad, zeroed] in [
        [on_cpu(&clean), on_cpu(&bad), on_cpu(&zeroed)],
        [on_gpu(&clean), on_gpu(&bad), on_gpu(&zeroed)],
    ] {
        assert_eq!(bad[..tokens], clean[..tokens]);
        assert_eq!(bad[2 * tokens..], clean[2 * tokens..]);
        assert_eq!(bad[tokens + 50], -1.0);
        assert_eq!(bad[tokens..tokens + 50], zeroed[tokens..tokens + 50]);
        assert_eq!(bad[tokens + 51..2 * tokens], zeroed[tokens + 51..2 * tokens]);
    }
}

/// NaN in the value of a token that goes leaves no trace; in one that stays, its bits and no more.
#[test]
fn a_bad_value_goes_with_its_token() {
    let (rows, tokens, dim) = (2, 300, 64);
    let keys = Data::new(&uniform(33, rows * tokens * dim), Dtype::F16);
    let clean: Vec<f16> = uniform(34, rows * tokens * dim).into_iter().map(f16::from_f32).collect();
    let config = EvictConfig::new(Budget::Uniform(40));
    let evict = |values: &[f16]| {
        let values = Data::F16(values.to_vec());
        let (k, v) = (keys.tensor(rows, tokens, dim), values.tensor(rows, tokens, dim));
        let on_cpu = cpu::compress_prefill(&k, &v, &config).expect("evicted");
        let buffers = [upload_data(&keys), upload_data(&values)];
        let [k, v] = [("keys", &buffers[0]), ("values", &buffers[1])].map(|(name, buffer)| {
            DeviceTensor::new(name, Slice::all(buffer), Dtype::F16, rows, tokens, dim)
                .expect("a tensor")
        });
        let on_gpu = support::run(|rec| gpu::compress_prefill(rec, &k, &v, &config));
        let on_gpu: Vec<u16> = support::download_as(&on_gpu.expect("evicted").values.rows);
        let bits: Vec<u16> = on_cpu.values.iter().map(|x| x.to_bits()).collect();
        (on_cpu.kept, [bits, on_gpu])
    };
    let (kept, want) = evict(&clean);
    let gone = (0..tokens as u32).find(|p| kept.row(1).binary_search(p).is_err()).expect("one");
    let stays = kept.row(1)[7];
    for (position, place) in [(gone, None), (stays, Some((40 + 7) * dim + 5))] {
        let mut bad = clean.clone();
        bad[(tokens + position as usize) * dim + 5] = f16::from_bits(0xfe01);
        let (other, got) = evict(&bad);
        assert_eq!(other, kept, "values have no say");
        for (got, want) in got.into_iter().zip(&want) {
            let mut want = want.clone();
            if let Some(place) = place {
                want[place] = 0xfe01;
            }
            assert_eq!(got, want, "position {position}");
        }
    }
}

fn upload_data(data: &Data) -> wgkv::wgpu::Buffer {
    support::context().upload("data", data.view().bytes()).expect("a buffer")
}

/// Scores with both zeros as the border tie, and NaN of both signs.
#[test]
fn both_zeros_tie_and_both_nans_lose() {
    let mut scores = vec![-0.5f32; 20];
    scores[9] = 0.0;
    scores[3] = -0.0;
    scores[5] = f32::NAN;
    scores[2] = -f32::NAN;
    scores[12] = 1.0;
    let keep = |budget| {
        let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(budget)) };
        let kept = cpu::keep(&scores, 1, 20, &config).expect("a selection");
        assert_eq!(gpu_keep(&scores, 1, 20, &config), kept);
        kept.positions
    };
    assert_eq!(keep(2), [3, 12]);
    assert_eq!(keep(3), [3, 9, 12]);
    assert!(!keep(18).contains(&2) && !keep(18).contains(&5));
    assert!(keep(19).contains(&2) && !keep(19).contains(&5));
}

/// More rows than a dimension of a dispatch has workgroups: the only odd key is in the last row.
#[test]
fn many_tiny_rows() {
    let (rows, tokens, dim) = (65_544, 5, 16);
    let mut keys = vec![1.0f32; rows * tokens * dim];
    let last = rows * tokens * dim - dim;
    keys[last..].fill(-1.0);
    let data = Data::new(&keys, Dtype::F16);
    let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(2)) };
    let on_cpu =
        cpu::score_batched(&data.tensor(rows, tokens, dim), &config.score).expect("scores");
    let on_gpu = gpu_scores(&data, rows, tokens, dim, &config.score).score;
    assert!(difference(&on_gpu, &on_cpu.score) < 1e-5);
    for kept in [
        cpu::keep(&on_cpu.score, rows, tokens, &config).expect("a selection"),
        gpu_keep(&on_gpu, rows, tokens, &config),
    ] {
        assert_eq!(kept.row(0), [0, 1]);
        assert_eq!(kept.row(rows - 2), [0, 1]);
        assert!(kept.row(rows - 1).contains(&4));
    }
    let adaptive =
        EvictConfig { sinks: 1, ..EvictConfig::new(Budget::Adaptive { per_head: 2, heads: 8 }) };
    let kept = cpu::keep(&on_cpu.score, rows, tokens, &adaptive).expect("a selection");
    assert_eq!(gpu_keep(&on_cpu.score, rows, tokens, &adaptive), kept);
}

/// One long row: as many workgroups as one dimension has, and one more.
#[test]
fn long_rows_pass_the_limit_of_one_dimension() {
    for tokens in [65_536usize, 65_537] {
        let dim = 16;
        let mut keys = vec![1.0f32; tokens * dim];
        keys[(tokens - 1) * dim..].fill(-1.0);
        let data = Data::new(&keys, Dtype::F16);
        let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(8)) };
        let on_cpu =
            cpu::score_batched(&data.tensor(1, tokens, dim), &config.score).expect("scores");
        let on_gpu = gpu_scores(&data, 1, tokens, dim, &config.score).score;
        for scores in [&on_cpu.score, &on_gpu] {
            let kept = cpu::keep(scores, 1, tokens, &config).expect("a selection");
            assert_eq!(gpu_keep(scores, 1, tokens, &config), kept);
            assert!(kept.positions.contains(&(tokens as u32 - 1)));
        }
    }
}

/// One, two and three tokens with every budget and no sinks.
#[test]
fn tiny_prompts() {
    for tokens in 1..=3usize {
        let data = Data::new(&uniform(41, 2 * tokens * 64), Dtype::F16);
        for budget in 0..=4u32 {
            for sinks in [0, 1, 4] {
                for window in [1, 64] {
                    let score = ScoreConfig { window, ..Default::default() };
                    let config =
                        EvictConfig { sinks, score, ..EvictConfig::new(Budget::Uniform(budget)) };
                    let tensor = data.tensor(2, tokens, 64);
                    let kept =
                        cpu::compress_prefill(&tensor, &tensor, &config).expect("evicted").kept;
                    let want = (sinks as usize).min(tokens).max((budget as usize).min(tokens));
                    assert_eq!(kept.budgets(), [want as u32; 2]);
                    let scores = gpu_scores(&data, 2, tokens, 64, &score).score;
                    assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)));
                    let on_gpu = gpu_keep(&scores, 2, tokens, &config);
                    assert_eq!(on_gpu.budgets(), [want as u32; 2]);
                }
            }
        }
    }
}

/// Dimensions of zero are refused by name.
#[test]
fn zero_sized_dimensions() {
    for (rows, tokens) in [(0, 5), (5, 0)] {
        assert!(Tensor::new("keys", Elements::F32(&[]), rows, tokens, 64).is_err());
        let config = EvictConfig::new(Budget::Uniform(1));
        assert!(cpu::keep(&[], rows, tokens, &config).is_err());
    }
    assert!(cpu::score(Elements::F32(&[]), 0, &ScoreConfig::default()).is_err());
    assert!(cpu::score(Elements::F32(&[]), 64, &ScoreConfig::default()).is_err());
    assert!(cpu::per_scale_anomaly_scores(&[], 64, 1, 1).is_err());
    assert!(cpu::head_adaptive_blend_batched([&[], &[], &[]], 0, 3.0, [0.4, 0.4, 0.2]).is_err());
    let adaptive = EvictConfig::new(Budget::Adaptive { per_head: 1, heads: 0 });
    assert!(cpu::keep(&[0.0], 1, 1, &adaptive).is_err());
    let adaptive = EvictConfig::new(Budget::Adaptive { per_head: 1, heads: 2 });
    assert!(cpu::keep(&[0.0; 3], 3, 1, &adaptive).is_err());
}
