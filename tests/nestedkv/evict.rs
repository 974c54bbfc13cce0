//! Selection and the job as a whole.

use half::f16;
use proptest::prelude::*;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::{Budget, EvictConfig, cpu, gpu};
use wgkv::shape::{Dtype, Elements};

use super::cases::{Data, Kind, Problem, few, gpu_keep, problem, uniform};
use crate::support;

/// Scores with ties, NaN, signed zeros and the mark of bad rows.
fn scores(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        4 => 0.0f32..1.0,
        4 => (0u32..4).prop_map(|x| x as f32 / 4.0),
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, -f32::NAN, -1.0]),
    ];
    prop::collection::vec(value, len)
}

#[derive(Clone, Debug)]
struct Selection {
    rows: usize,
    tokens: usize,
    scores: Vec<f32>,
    config: EvictConfig,
}

fn selection() -> impl Strategy<Value = Selection> {
    let tokens = prop_oneof![
        8 => 1usize..60,
        4 => 60usize..600,
        2 => 1020usize..1030,
        1 => 4090usize..8300,
    ];
    (1usize..=4, 1usize..=3, tokens).prop_flat_map(|(heads, sequences, tokens)| {
        let rows = heads * sequences;
        let budget = 0..tokens as u32 + 5;
        (scores(rows * tokens), budget, any::<bool>(), 0u32..9, 0.0f64..=1.0).prop_map(
            move |(scores, per_head, adaptive, sinks, safeguard)| {
                let budget = if adaptive {
                    Budget::Adaptive { per_head, heads }
                } else {
                    Budget::Uniform(per_head)
                };
                let config = EvictConfig { sinks, safeguard, ..EvictConfig::new(budget) };
                Selection { rows, tokens, scores, config }
            },
        )
    })
}

/// Rank of a score: NaN lowest, both zeros equal.
fn better(a: f32, b: f32) -> bool {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => false,
        (false, true) => true,
        _ => a > b,
    }
}

proptest! {
    #![proptest_config(few(48))]

    #[test]
    fn selections_are_the_same_on_both_paths(case in selection()) {
        let Selection { rows, tokens, scores, config } = case;
        let kept = cpu::keep(&scores, rows, tokens, &config).expect("a selection");
        prop_assert_eq!(&gpu_keep(&scores, rows, tokens, &config), &kept);
        let sinks = tokens.min(config.sinks as usize);
        for row in 0..rows {
            let positions = kept.row(row);
            prop_assert!(positions.windows(2).all(|w| w[0] < w[1]));
            prop_assert!((0..sinks as u32).all(|p| positions.contains(&p)), "sinks are kept");
            // Nobody left out beats anybody kept; equal scores go by position.
            let part = &scores[row * tokens..(row + 1) * tokens];
            let is_kept = |p: usize| positions.binary_search(&(p as u32)).is_ok();
            let mut worst: Option<usize> = None;
            for p in (sinks..tokens).filter(|&p| is_kept(p)) {
                if worst.is_none_or(|w| !better(part[p], part[w])) {
                    worst = Some(p);
                }
            }
            if let Some(worst) = worst {
                for p in (sinks..tokens).filter(|&p| !is_kept(p)) {
                    prop_assert!(!better(part[p], part[worst]));
                    prop_assert!(better(part[worst], part[p]) || p > worst);
                }
            }
        }
        match config.budget {
            Budget::Uniform(budget) => {
                let each = sinks.max(tokens.min(budget as usize)) as u32;
                prop_assert_eq!(kept.budgets(), vec![each; rows]);
                prop_assert_eq!(kept.sinks_only, tokens.min(budget as usize) < sinks);
            }
            Budget::Adaptive { per_head, heads } => {
                let total = heads * sinks.max(tokens.min(per_head as usize));
                for sequence in kept.budgets().chunks(heads) {
                    prop_assert_eq!(sequence.iter().sum::<u32>() as usize, total);
                }
            }
        }
    }

    #[test]
    fn the_job_gathers_the_same_rows_on_both_paths(
        problem in problem(),
        share in 0.0f64..1.0,
        adaptive in any::<bool>(),
        value_dim in prop::sample::select(vec![16usize, 80, 128]),
    ) {
        let Problem { rows, tokens, dim, dtype, .. } = problem;
        // Rows whose values do not fit f16 have a test of their own.
        prop_assume!(problem.kind != Kind::Huge && problem.kind != Kind::Mixed || dtype == Dtype::F16);
        let per_head = (share * tokens as f64) as u32;
        let budget = if adaptive {
            Budget::Adaptive { per_head, heads: rows }
        } else {
            Budget::Uniform(per_head)
        };
        let config = EvictConfig::new(budget);
        let keys = problem.keys();
        let values = Data::new(&uniform(problem.seed + 1, rows * tokens * value_dim), dtype);
        let buffers = [
            problem.upload(),
            support::context().upload("values", values.view().bytes()).expect("a buffer"),
        ];
        let key_tensor = problem.tensor(&buffers[0]);
        let value_tensor =
            DeviceTensor::new("values", Slice::all(&buffers[1]), dtype, rows, tokens, value_dim)
                .expect("a tensor");
        let evicted = support::run(|rec| {
            gpu::compress_prefill(rec, &key_tensor, &value_tensor, &config)
        }).expect("evicted");
        // Scores may differ in the last digits, so the CPU selects by those of the GPU.
        let scores: Vec<f32> = support::download_as(&evicted.scores.score);
        let kept = cpu::keep(&scores, rows, tokens, &config).expect("a selection");
        let mut positions: Vec<u32> = support::download_as(&evicted.kept.positions);
        positions.truncate(evicted.kept.total as usize);
        prop_assert_eq!(&positions, &kept.positions);
        prop_assert_eq!(support::download_as::<u32>(&evicted.kept.offsets), kept.offsets.clone());
        let pairs = [
            (&evicted.keys, keys.tensor(rows, tokens, dim)),
            (&evicted.values, values.tensor(rows, tokens, value_dim)),
        ];
        for (got, source) in pairs {
            let want: Vec<u16> =
                cpu::gather(&source, &kept).expect("rows").iter().map(|x| x.to_bits()).collect();
            let mut got_rows: Vec<u16> = support::download_as(&got.rows);
            got_rows.truncate(want.len());
            prop_assert_eq!(got_rows, want);
            let beyond = gpu::first_beyond(&support::download(&got.beyond)).expect("a word");
            prop_assert_eq!(beyond, None);
        }
        let on_cpu = cpu::compress_prefill(
            &keys.tensor(rows, tokens, dim), &values.tensor(rows, tokens, value_dim), &config,
        ).expect("evicted");
        prop_assert_eq!(on_cpu.kept.positions.len(), kept.positions.len());
        prop_assert_eq!(on_cpu.values.len(), kept.positions.len() * value_dim);
    }
}

#[test]
fn identical_keys_select_the_lowest_indices() {
    for (dim, dtype) in [(32, Dtype::F32), (64, Dtype::F16), (80, Dtype::Bf16)] {
        for fill in [0.0f32, 0.3] {
            let keys = Data::new(&vec![fill; 2 * 300 * dim], dtype);
            let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(17)) };
            let tensor = keys.tensor(2, 300, dim);
            let evicted = cpu::compress_prefill(&tensor, &tensor, &config).expect("evicted");
            let want: Vec<u32> = (0..17).chain(0..17).collect();
            assert_eq!(evicted.kept.positions, want);
            let scores = super::cases::gpu_scores(&keys, 2, 300, dim, &config.score).score;
            assert_eq!(gpu_keep(&scores, 2, 300, &config).positions, want);
        }
    }
}

#[test]
fn a_budget_below_the_sinks_keeps_the_sinks_and_says_so() {
    let scores = uniform(3, 4 * 50);
    for budget in [Budget::Uniform(2), Budget::Adaptive { per_head: 2, heads: 2 }] {
        let config = EvictConfig { sinks: 6, ..EvictConfig::new(budget) };
        for kept in [
            cpu::keep(&scores, 4, 50, &config).expect("a selection"),
            gpu_keep(&scores, 4, 50, &config),
        ] {
            assert!(kept.sinks_only);
            assert_eq!(kept.budgets(), [6; 4]);
            assert_eq!(kept.row(3), [0, 1, 2, 3, 4, 5]);
        }
    }
    let config = EvictConfig { sinks: 6, ..EvictConfig::new(Budget::Uniform(6)) };
    assert!(!cpu::keep(&scores, 4, 50, &config).expect("a selection").sinks_only);
}

#[test]
fn nothing_is_kept_for_no_budget_and_no_sinks() {
    let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(0)) };
    let keys = Data::new(&uniform(1, 2 * 9 * 16), Dtype::F16);
    let tensor = keys.tensor(2, 9, 16);
    let evicted = cpu::compress_prefill(&tensor, &tensor, &config).expect("evicted");
    assert_eq!(evicted.kept.offsets, [0, 0, 0]);
    assert!(evicted.keys.is_empty() && evicted.values.is_empty());
    let kept = gpu_keep(&uniform(1, 18), 2, 9, &config);
    assert_eq!(kept.offsets, [0, 0, 0]);
}

#[test]
fn values_beyond_f16_are_refused_only_where_they_stay() {
    let (tokens, dim) = (40, 16);
    let mut values = uniform(5, tokens * dim);
    values[30 * dim + 2] = 1e6;
    let keys = Data::new(&uniform(6, tokens * dim), Dtype::F32);
    let values = Data::F32(values);
    let (keys, values) = (keys.tensor(1, tokens, dim), values.tensor(1, tokens, dim));
    let all = EvictConfig::new(Budget::Uniform(40));
    let message = cpu::compress_prefill(&keys, &values, &all).expect_err("refused").to_string();
    assert!(
        message.contains("values") && message.contains("1000000") && message.contains("row 30"),
        "{message}"
    );
    // The same values in device memory: the rows come with a word that says so.
    let Elements::F32(data) = values.data() else { panic!("f32") };
    let buffer = super::cases::upload(data);
    let tensor = DeviceTensor::new("values", Slice::all(&buffer), Dtype::F32, 1, tokens, dim)
        .expect("a tensor");
    let scores = super::cases::upload(&uniform(8, tokens));
    let gathered = support::run(|rec| {
        let kept = gpu::keep(rec, Slice::all(&scores), 1, tokens, &all)?;
        gpu::gather(rec, &tensor, &kept)
    })
    .expect("rows");
    assert_eq!(gpu::first_beyond(&support::download(&gathered.beyond)).expect("a word"), Some(30));
    let rows: Vec<u16> = support::download_as(&gathered.rows);
    assert_eq!(rows[30 * dim + 2], f16::INFINITY.to_bits());
    let sinks = EvictConfig::new(Budget::Uniform(1));
    assert!(cpu::compress_prefill(&keys, &values, &sinks).is_ok());
}

#[test]
fn a_single_bad_key_is_kept_last() {
    let (tokens, dim) = (300, 64);
    let mut keys = uniform(11, tokens * dim);
    for (token, bits) in [(50, 0x7e00u16), (60, 0xfe00), (70, 0x7c01), (80, 0x7c00), (90, 0xfc00)] {
        keys[token * dim + token % dim] = f16::from_bits(bits).to_f32();
    }
    let mut halves: Vec<f16> = keys.iter().map(|&x| f16::from_f32(x)).collect();
    halves[70 * dim + 70 % dim] = f16::from_bits(0x7c01);
    let data = Data::F16(halves);
    let tensor = data.tensor(1, tokens, dim);
    let bad = [50u32, 60, 70, 80, 90];
    for budget in [4, 200, 295, 299, 300] {
        let config = EvictConfig::new(Budget::Uniform(budget));
        let on_cpu = cpu::compress_prefill(&tensor, &tensor, &config).expect("evicted").kept;
        let scores = super::cases::gpu_scores(&data, 1, tokens, dim, &config.score).score;
        let on_gpu = gpu_keep(&scores, 1, tokens, &config);
        for kept in [on_cpu, on_gpu] {
            // The lowest of them first, and only when every number is in.
            let chosen: Vec<u32> =
                bad.iter().copied().filter(|p| kept.positions.contains(p)).collect();
            assert_eq!(chosen, bad[..(budget as usize).saturating_sub(295)], "{budget}");
        }
    }
}
