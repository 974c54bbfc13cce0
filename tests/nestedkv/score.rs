//! The score as a whole, on both paths against the judge in f64.

use proptest::prelude::*;
use wgkv::judge::nestedkv::{Constants, Scored, score as judged};
use wgkv::nestedkv::plan::FLAT_SPAN;
use wgkv::nestedkv::{ScoreConfig, block_size_for, cpu};
use wgkv::shape::Dtype;

use super::cases::{Kind, Problem, config, few, gpu_scores, problem, uniform};

fn judge(problem: &Problem, config: &ScoreConfig) -> Vec<Scored> {
    let constants = Constants {
        window: config.window as usize,
        beta: f64::from(config.beta),
        tau: f64::from(config.tau),
        kappa: f64::from(config.kappa),
        prior: config.prior.map(f64::from),
        rectify: config.rectify,
        flat: f64::from(FLAT_SPAN),
    };
    let values = problem.keys().f64s();
    values
        .chunks(problem.tokens * problem.dim)
        .map(|row| judged(row, problem.dim, &constants))
        .collect()
}

/// Compares what a path found with the judge, row by row, within what f32 allows.
fn check(
    problem: &Problem,
    config: &ScoreConfig,
    truth: &[Scored],
    score: &[f32],
    scales: &[Vec<f32>; 3],
    blend: &[f32],
) -> Result<(), TestCaseError> {
    let n = problem.tokens;
    for (row, truth) in truth.iter().enumerate() {
        let range = row * n..(row + 1) * n;
        let score = &score[range.clone()];
        let blend = &blend[range.clone()];
        for (got, want) in score.iter().zip(&truth.score) {
            prop_assert!(got.is_finite());
            prop_assert_eq!(*got < 0.0, *want < 0.0, "NaN and Inf score -1");
        }
        // A span close to the bound may count as none on one side only.
        if truth.span.iter().any(|s| (2e-7..5e-6).contains(s)) {
            continue;
        }
        let span = truth.span.into_iter().filter(|s| *s > 1e-6).fold(1.0f64, f64::min);
        let unit = 1e-6 / span + 2e-6;
        let worst = |got: &[f32], want: &[f64]| {
            got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max)
        };
        for (k, scale) in scales.iter().enumerate() {
            let error = worst(&scale[range.clone()], &truth.scales[k]);
            prop_assert!(error <= unit, "scale {}: {:e}, allowed {:e}", k, error, unit);
        }
        let blend_error = worst(blend, &truth.blend);
        let gap_slope = 2.0 * f64::from(config.beta.abs());
        let prior = truth.weights.iter().sum::<f64>();
        let blend_unit = unit * (1.0 + gap_slope) * prior.max(1.0);
        prop_assert!(
            blend_error <= blend_unit,
            "blend: {:e}, allowed {:e}",
            blend_error,
            blend_unit
        );
        // The surprise is stretched too, so the span of the deviations counts.
        let deviations: Vec<f64> = (0..n)
            .map(|i| {
                let a: [f64; 3] = core::array::from_fn(|k| truth.scales[k][i]);
                let mean = a.iter().sum::<f64>() / 3.0;
                (a.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 3.0).sqrt()
            })
            .collect();
        let low = deviations.iter().copied().fold(f64::INFINITY, f64::min);
        let high = deviations.iter().copied().fold(0.0, f64::max);
        if (2e-7..5e-6).contains(&(high - low)) {
            continue;
        }
        let slope = f64::from(config.kappa.abs()) / 4.0 * 4.0 / (high - low).max(1e-6);
        let allowed = blend_unit + unit * (1.0 + if high > low { slope } else { 0.0 });
        let error = worst(score, &truth.score);
        prop_assert!(error <= allowed, "score: {:e}, allowed {:e}", error, allowed);
    }
    Ok(())
}

proptest! {
    #![proptest_config(few(32))]

    #[test]
    fn both_paths_equal_the_judge(problem in problem(), config in config()) {
        let truth = judge(&problem, &config);
        let keys = problem.keys();
        let Problem { rows, tokens, dim, .. } = problem;
        let got = cpu::score_batched(&keys.tensor(rows, tokens, dim), &config).expect("scores");
        check(&problem, &config, &truth, &got.score, &got.scales, &got.blend)?;
        let bad = truth.iter().flat_map(|t| &t.score).filter(|s| **s < 0.0).count();
        prop_assert_eq!(got.nonfinite, bad);
        let got = gpu_scores(&keys, rows, tokens, dim, &config);
        check(&problem, &config, &truth, &got.score, &got.scales, &got.blend)?;
    }

    #[test]
    fn rows_do_not_see_each_other(problem in problem(), config in config()) {
        let keys = problem.keys();
        let Problem { rows, tokens, dim, .. } = problem;
        let whole = cpu::score_batched(&keys.tensor(rows, tokens, dim), &config).expect("scores");
        let on_gpu = gpu_scores(&keys, rows, tokens, dim, &config);
        let per_row = tokens * dim;
        for row in [0, rows - 1] {
            let alone = keys.view().slice(row * per_row..(row + 1) * per_row);
            let score = cpu::score(alone, dim, &config).expect("scores");
            prop_assert_eq!(&whole.score[row * tokens..(row + 1) * tokens], score.as_slice());
            let alone = match alone {
                wgkv::shape::Elements::F32(x) => super::cases::Data::F32(x.to_vec()),
                wgkv::shape::Elements::F16(x) => super::cases::Data::F16(x.to_vec()),
                wgkv::shape::Elements::Bf16(x) => super::cases::Data::Bf16(x.to_vec()),
            };
            let score = gpu_scores(&alone, 1, tokens, dim, &config).score;
            prop_assert_eq!(&on_gpu.score[row * tokens..(row + 1) * tokens], score.as_slice());
        }
    }
}

#[test]
fn every_head_dim_on_both_paths() {
    for dim in super::cases::DIMS {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let problem =
                Problem { rows: 2, tokens: 70, dim, dtype, seed: dim as u32, kind: Kind::Offset };
            let config = ScoreConfig::default();
            let truth = judge(&problem, &config);
            let keys = problem.keys();
            let got = cpu::score_batched(&keys.tensor(2, 70, dim), &config).expect("scores");
            check(&problem, &config, &truth, &got.score, &got.scales, &got.blend).expect("equal");
            let got = gpu_scores(&keys, 2, 70, dim, &config);
            check(&problem, &config, &truth, &got.score, &got.scales, &got.blend).expect("equal");
        }
    }
}

#[test]
fn the_same_numbers_in_another_type_score_the_same() {
    // Exact in f16, bf16 and f32.
    let values: Vec<f32> =
        uniform(7, 2 * 300 * 64).iter().map(|x| (x * 128.0).round() / 64.0).collect();
    let config = ScoreConfig::default();
    let scores = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| {
        let keys = super::cases::Data::new(&values, dtype);
        let cpu = cpu::score_batched(&keys.tensor(2, 300, 64), &config).expect("scores").score;
        (cpu, gpu_scores(&keys, 2, 300, 64, &config).score)
    });
    assert_eq!(scores[0], scores[1]);
    assert_eq!(scores[0], scores[2]);
}

#[test]
fn block_sizes_follow_the_schedule() {
    for (n, want) in [
        (1, 1),
        (100, 100),
        (128, 128),
        (129, 128),
        (4096, 128),
        (4127, 128),
        (4128, 129),
        (6000, 187),
        (8192, 256),
        (131_072, 256),
    ] {
        assert_eq!(block_size_for(n), want, "{n}");
    }
}

#[test]
fn parts_per_head_and_batched_make_the_whole() {
    let problem =
        Problem { rows: 3, tokens: 150, dim: 32, dtype: Dtype::F32, seed: 4, kind: Kind::Offset };
    let keys = problem.keys();
    let config = ScoreConfig::default();
    let whole = cpu::score_batched(&keys.tensor(3, 150, 32), &config).expect("scores");
    let mut unit: Vec<f32> = keys.f64s().iter().map(|x| *x as f32).collect();
    for row in unit.chunks_mut(32) {
        let f = cpu::norm::factor(row);
        cpu::norm::apply(row, f);
    }
    let [s, e, c] = cpu::per_scale_anomaly_scores_batched(&unit, 3, 32, block_size_for(150), 64)
        .expect("scales");
    // The whole divides by the norm after the product with the row's mean, the parts before.
    let close = |a: &[f32], b: &[f32]| super::cases::difference(a, b) < 1e-5;
    for (part, whole) in [&s, &e, &c].into_iter().zip(&whole.scales) {
        assert!(close(part, whole));
    }
    let blend =
        cpu::head_adaptive_blend_batched([&s, &e, &c], 3, 3.0, config.prior).expect("a blend");
    assert!(close(&blend, &whole.blend));
    let score = cpu::surprise_gated_score_batched([&s, &e, &c], &blend, 3, 0.6, 10.0, false);
    let score = score.expect("scores");
    assert!(close(&score, &whole.score));
    for row in 0..3 {
        let part = row * 150..(row + 1) * 150;
        let [s1, e1, c1] =
            cpu::per_scale_anomaly_scores(&unit[row * 150 * 32..][..150 * 32], 32, 128, 64)
                .expect("scales");
        assert_eq!(s1, s[part.clone()]);
        let blend1 = cpu::head_adaptive_blend([&s1, &e1, &c1], 3.0, config.prior).expect("a blend");
        assert_eq!(blend1, blend[part.clone()]);
        let score1 =
            cpu::surprise_gated_score([&s1, &e1, &c1], &blend1, 0.6, 10.0, false).expect("scores");
        assert_eq!(score1, score[part]);
    }
}

#[test]
fn bad_parameters_are_refused_by_name() {
    let keys = super::cases::Data::F32(vec![1.0; 64]);
    let keys = keys.tensor(1, 1, 64);
    let good = ScoreConfig::default();
    for (name, bad) in [
        ("window", ScoreConfig { window: 0, ..good }),
        ("beta", ScoreConfig { beta: f32::NAN, ..good }),
        ("tau", ScoreConfig { tau: f32::INFINITY, ..good }),
        ("kappa", ScoreConfig { kappa: 1e9, ..good }),
        ("prior", ScoreConfig { prior: [0.4, 0.0, 0.2], ..good }),
        ("prior", ScoreConfig { prior: [0.4, f32::NAN, 0.2], ..good }),
    ] {
        let message = cpu::score_batched(&keys, &bad).expect_err("refused").to_string();
        assert!(message.starts_with(name), "{message}");
    }
}
