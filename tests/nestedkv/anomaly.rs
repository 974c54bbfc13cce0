//! Raw scores of the three scales.

use proptest::prelude::*;
use wgkv::Error;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::anomaly::{Keys, Raw, anomaly as cpu_anomaly};
use wgkv::nestedkv::gpu::{anchor, anomaly, mean};
use wgkv::nestedkv::plan::Cut;
use wgkv::primitives::order::order_key;
use wgkv::shape::Dtype;

use super::cases::{Data, Kind, Problem, difference, few, problem};
use crate::support;

/// Raw scores on the CPU, `[3, rows, tokens]`.
fn on_cpu(keys: &Data, problem: &Problem, block: usize, window: usize) -> Vec<f32> {
    let Problem { rows, tokens, dim, .. } = *problem;
    let mut scales = vec![0.0; 3 * rows * tokens];
    let mut factors = vec![0.0; rows * tokens];
    let mut parts: Vec<_> = scales.chunks_mut(tokens).collect();
    let current = parts.split_off(2 * rows);
    let episodic = parts.split_off(rows);
    let raws = parts
        .into_iter()
        .zip(episodic)
        .zip(current)
        .zip(factors.chunks_mut(tokens))
        .enumerate()
        .map(|(row, (((s, e), c), factors))| Raw {
            keys: Keys {
                data: keys.view().slice(row * tokens * dim..(row + 1) * tokens * dim),
                dim,
                normalised: false,
            },
            scores: [s, e, c],
            factors,
        })
        .collect();
    cpu_anomaly(raws, block, window);
    scales
}

fn on_gpu(problem: &Problem, block: usize, window: usize) -> Vec<f32> {
    let buffer = problem.upload();
    let keys = problem.tensor(&buffer);
    let (rows, tokens, dim) = (problem.rows, problem.tokens, problem.dim);
    let found = support::run(|rec| {
        let anchored = anchor::record(rec, &keys, block)?;
        let runs = Cut { tokens, block }.runs();
        let means = mean::record(rec, Slice::all(&anchored.sums), rows, runs, dim, tokens)?;
        let means = Slice::all(&means);
        anomaly::record(rec, &keys, &anomaly::Anchors { anchored: &anchored, means, block, window })
    });
    let found = found.expect("scales");
    let scales: Vec<f32> = support::download_as(&found.scales);
    let extremes: Vec<[u32; 2]> = support::download_as(&found.extremes);
    for (line, [highest, lowest]) in scales.chunks(tokens).zip(extremes) {
        assert_eq!(Some(highest), line.iter().map(|&score| order_key(score)).max());
        assert_eq!(Some(lowest), line.iter().map(|&score| !order_key(score)).max());
    }
    scales
}

proptest! {
    #![proptest_config(few(20))]

    #[test]
    fn gpu_equals_cpu(
        problem in problem(),
        block in 1usize..=256,
        window in prop_oneof![Just(64usize), 1usize..100, 250usize..700],
    ) {
        let block = block.min(problem.tokens);
        let want = on_cpu(&problem.keys(), &problem, block, window);
        let error = difference(&on_gpu(&problem, block, window), &want);
        prop_assert!(error <= 2e-6, "{}", error);
    }
}

/// Keys with a large common mean, where a difference of running sums would lose digits.
#[test]
fn long_rows_are_as_exact_as_short_ones() {
    let tokens = 131_072;
    let problem =
        Problem { rows: 1, tokens, dim: 16, dtype: Dtype::F16, seed: 5, kind: Kind::Offset };
    let keys = problem.keys();
    let got = [on_cpu(&keys, &problem, 256, 64), on_gpu(&problem, 256, 64)];
    let values = keys.f64s();
    let unit: Vec<Vec<f64>> = values
        .chunks(16)
        .map(|k| {
            let norm = k.iter().map(|x| x * x).sum::<f64>().sqrt();
            k.iter().map(|x| x / norm).collect()
        })
        .collect();
    let mean = |from: usize, to: usize, token: usize| -> f64 {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        -(from..to).map(|t| dot(&unit[t], &unit[token])).sum::<f64>() / (to - from) as f64
    };
    for token in (0..64).chain((0..tokens).step_by(997)).chain(tokens - 64..tokens) {
        let block = token / 256 * 256;
        let episodic = mean(block, block + 256, token);
        let current = mean((token + 1).saturating_sub(64), token + 1, token);
        for got in &got {
            assert!((f64::from(got[tokens + token]) - episodic).abs() < 1e-6, "{token}");
            assert!((f64::from(got[2 * tokens + token]) - current).abs() < 1e-6, "{token}");
        }
    }
}

/// With a window of one token every key equals its window, and with identical keys every key equals
/// all means: what is left is rounding, well below what counts as a span.
#[test]
fn rounding_alone_is_no_span() {
    for dim in [16, 80, 128, 512] {
        for (kind, window) in
            [(Kind::Plain, 1), (Kind::Offset, 1), (Kind::Constant, 64), (Kind::Constant, 300)]
        {
            for dtype in [Dtype::F16, Dtype::F32] {
                let problem = Problem { rows: 1, tokens: 1000, dim, dtype, seed: 3, kind };
                for scales in
                    [on_cpu(&problem.keys(), &problem, 128, window), on_gpu(&problem, 128, window)]
                {
                    let scales = if kind == Kind::Constant { &scales[..] } else { &scales[2000..] };
                    for scale in scales.chunks(1000) {
                        let low = scale.iter().copied().fold(f32::INFINITY, f32::min);
                        let high = scale.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        assert!(high - low <= 8e-7, "{problem:?}, window {window}: {}", high - low);
                    }
                }
            }
        }
    }
}

/// The kernel has no guards but its own, so anchors of fewer keys are refused.
#[test]
fn anchors_of_fewer_keys_are_refused() {
    let whole =
        Problem { rows: 2, tokens: 300, dim: 64, dtype: Dtype::F16, seed: 3, kind: Kind::Plain };
    let less = Problem { tokens: 150, ..whole.clone() };
    let (whole_keys, less_keys) = (whole.upload(), less.upload());
    let zeros = support::context().create("means", 4 * 2 * 64).expect("zeros");
    let zero = support::context().create("means", 4 * 64).expect("zeros");
    for (of, means) in [(&less, &zeros), (&whole, &zero)] {
        let refused = support::run(|rec| {
            let buffer = if of.tokens == 150 { &less_keys } else { &whole_keys };
            let anchored = anchor::record(rec, &of.tensor(buffer), 64)?;
            let means = Slice::all(means);
            let anchors = anomaly::Anchors { anchored: &anchored, means, block: 64, window: 64 };
            anomaly::record(rec, &whole.tensor(&whole_keys), &anchors)
        });
        assert!(matches!(refused, Err(Error::Length { .. })), "{of:?}");
    }
}
