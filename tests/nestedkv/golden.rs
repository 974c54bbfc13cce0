//! The reference cases, within the tolerances that their index gives.

use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::{self, Kept, Scores};
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig, gpu};
use wgkv::shape::Dtype;

use super::cases::{Case, Data, cases, gpu_keep, gpu_scores};
use crate::support::{
    self,
    golden::{Golden, index},
};

fn evict_config(case: &Case, budget: u32, sinks: u32) -> EvictConfig {
    EvictConfig { score: case.config, sinks, ..EvictConfig::new(Budget::Uniform(budget)) }
}

fn largest_error(got: &[f32], truth: &[f64]) -> f64 {
    assert_eq!(got.len(), truth.len());
    got.iter().zip(truth).map(|(g, t)| (f64::from(*g) - t).abs()).fold(0.0, f64::max)
}

/// Compares scores with the truth of a case.
fn check_scores(file: &Golden, case: &Case, score: &[f32], blend: &[f32], scales: [&[f32]; 3]) {
    let name = &case.name;
    let parts = [score, blend, scales[0], scales[1], scales[2]];
    if case.index["ill_conditioned"] == true {
        for part in parts {
            assert!(part.iter().all(|x| (0.0..=1.0).contains(x)), "{name}: outside [0, 1]");
        }
        return;
    }
    let tolerance = |part: &str| case.index["tolerance_abs_vs_truth"][part].as_f64().expect(part);
    let truth = file.numbers(&format!("{name}/truth_final"));
    let error = largest_error(score, &truth);
    assert!(error <= tolerance("final"), "{name}: score {error:.2e}");
    let error = largest_error(blend, &file.numbers(&format!("{name}/truth_blend")));
    assert!(error <= tolerance("blend"), "{name}: blend {error:.2e}");
    let truth = file.numbers(&format!("{name}/truth_scales"));
    for (scale, truth) in scales.into_iter().zip(truth.chunks(truth.len() / 3)) {
        let error = largest_error(scale, truth);
        assert!(error <= tolerance("scales"), "{name}: scales {error:.2e}");
    }
}

/// Compares a selection with the truth: equal but for tokens at the border.
fn check_kept(file: &Golden, case: &Case, tensor: &str, sinks: usize, kept: &Kept) {
    let truth = file.numbers(tensor);
    let finals = file.numbers(&format!("{}/truth_final", case.name));
    let count = truth.len() / case.rows;
    let ill = case.index["ill_conditioned"] == true && case.index["kind"] != "allzero";
    for row in 0..case.rows {
        let got = kept.row(row);
        assert_eq!(got.len(), count, "{tensor}");
        assert!(got.windows(2).all(|w| w[0] < w[1]), "{tensor}: ascending");
        assert!((0..sinks.min(case.tokens)).all(|s| got.contains(&(s as u32))), "{tensor}: sinks");
        if ill {
            continue;
        }
        let scores = &finals[row * case.tokens..(row + 1) * case.tokens];
        let want: Vec<u32> =
            truth[row * count..(row + 1) * count].iter().map(|&p| p as u32).collect();
        let edge = want
            .iter()
            .filter(|&&p| p as usize >= sinks)
            .map(|&p| scores[p as usize])
            .fold(f64::INFINITY, f64::min);
        for p in
            got.iter().filter(|p| !want.contains(p)).chain(want.iter().filter(|p| !got.contains(p)))
        {
            let off = (scores[*p as usize] - edge).abs();
            assert!(off < 1e-5, "{tensor} row {row}: position {p} is {off:.1e} from the border");
        }
    }
}

#[test]
fn cpu_scores_and_selections() {
    let file = Golden::open("nestedkv_cases.safetensors");
    let mut seen = 0;
    for case in cases(&file, &index()) {
        let keys = case.keys.tensor(case.rows, case.tokens, case.dim);
        let Scores { score, blend, scales: [s, e, c], .. } =
            cpu::score_batched(&keys, &case.config).expect("scores");
        check_scores(&file, &case, &score, &blend, [&s, &e, &c]);
        for kept in case.index["kept"].as_array().expect("kept sets") {
            let sinks = kept["n_sink"].as_u64().expect("sinks") as u32;
            let budget = kept["budget"].as_u64().expect("a budget") as u32;
            let config = evict_config(&case, budget, sinks);
            let got = cpu::keep(&score, case.rows, case.tokens, &config).expect("a selection");
            let tensor = kept["truth_tensor"].as_str().expect("a name");
            check_kept(&file, &case, tensor, sinks as usize, &got);
            assert_eq!(
                got.sinks_only,
                budget.min(case.tokens as u32) < sinks.min(case.tokens as u32)
            );
        }
        seen += 1;
    }
    assert!(seen >= 5, "{seen} cases");
}

#[test]
fn gpu_scores_and_selections() {
    let file = Golden::open("nestedkv_cases.safetensors");
    for case in cases(&file, &index()) {
        let got = gpu_scores(&case.keys, case.rows, case.tokens, case.dim, &case.config);
        let [s, e, c] = &got.scales;
        check_scores(&file, &case, &got.score, &got.blend, [s, e, c]);
        for kept in case.index["kept"].as_array().expect("kept sets") {
            let sinks = kept["n_sink"].as_u64().expect("sinks") as u32;
            let budget = kept["budget"].as_u64().expect("a budget") as u32;
            let config = evict_config(&case, budget, sinks);
            let got_kept = gpu_keep(&got.score, case.rows, case.tokens, &config);
            let tensor = kept["truth_tensor"].as_str().expect("a name");
            check_kept(&file, &case, tensor, sinks as usize, &got_kept);
            let same = cpu::keep(&got.score, case.rows, case.tokens, &config);
            assert_eq!(got_kept, same.expect("a selection"), "{tensor}");
        }
    }
}

#[test]
fn budgets_on_both_paths() {
    let file = Golden::open("nestedkv_budget_scores.safetensors");
    let index = index();
    let list = index["head_budgets"].as_array().expect("cases");
    assert_eq!(list.len(), 282);
    for case in list {
        let name = case["list"].as_str().expect("a list");
        let heads: Vec<Vec<f32>> = (0..case["lengths"].as_array().expect("lengths").len())
            .map(|h| file.numbers(&format!("{name}/head{h}")).iter().map(|&x| x as f32).collect())
            .collect();
        let views: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let total = case["total_budget"].as_u64().expect("a total");
        let safeguard = case["alpha"].as_f64().expect("a safeguard");
        let got = cpu::allocate_head_budgets(&views, total, safeguard).expect("budgets");
        let want: Vec<u32> = case["expected"]
            .as_array()
            .expect("budgets")
            .iter()
            .map(|b| b.as_u64().expect("a budget") as u32)
            .collect();
        assert_eq!(got, want, "{name}, total {total}, safeguard {safeguard}");
        let lengths: Vec<usize> = heads.iter().map(Vec::len).collect();
        let scores = heads.concat();
        let context = support::context();
        let buffer = context.upload("scores", bytemuck::cast_slice(&scores)).expect("a buffer");
        let budgets = support::run(|rec| {
            gpu::allocate_head_budgets(rec, Slice::all(&buffer), &lengths, total, safeguard)
        })
        .expect("budgets");
        let got: Vec<u32> = support::download_as(&budgets);
        assert_eq!(got, want, "{name}, total {total}, safeguard {safeguard} on the GPU");
    }
}

/// Keys of a real model, where the larger set of reference files is at hand.
#[test]
fn a_real_cache_scores_and_selects_as_the_truth() {
    let names = ["smollm2_kv_alice.safetensors", "smollm2_nestedkv_truth.safetensors"];
    if !names.iter().all(|name| support::golden_path(name).exists()) {
        return;
    }
    let [caches, truths] = names.map(Golden::open);
    let (rows, tokens, dim) = (3, 2048, 64);
    for layer in [0, 7, 15, 22, 29] {
        for side in ["post", "pre"] {
            let truth = truths.numbers(&format!("layer{layer}/{side}/truth_final"));
            let values = caches.numbers(&format!("layer{layer}/keys_{side}_rope"));
            let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            let keys = Data::new(&values, Dtype::F16);
            let config = ScoreConfig::default();
            let on_cpu = cpu::score_batched(&keys.tensor(rows, tokens, dim), &config);
            let on_cpu = on_cpu.expect("scores").score;
            let on_gpu = gpu_scores(&keys, rows, tokens, dim, &config).score;
            for (path, score) in [("CPU", &on_cpu), ("GPU", &on_gpu)] {
                let error = largest_error(score, &truth);
                assert!(error <= 2e-5, "layer {layer} {side} on the {path}: {error:.2e}");
            }
            for budget in [512, 1024] {
                let config = EvictConfig::new(Budget::Uniform(budget));
                let name = format!("layer{layer}/{side}/kept_sink4_budget{budget}");
                let want = truths.numbers(&name);
                for score in [&on_cpu, &on_gpu] {
                    let kept = cpu::keep(score, rows, tokens, &config).expect("a selection");
                    for row in 0..rows {
                        let want: Vec<u32> = want
                            [row * budget as usize..(row + 1) * budget as usize]
                            .iter()
                            .map(|&p| p as u32)
                            .collect();
                        let scores = &truth[row * tokens..(row + 1) * tokens];
                        let edge = want[4..]
                            .iter()
                            .map(|&p| scores[p as usize])
                            .fold(f64::INFINITY, f64::min);
                        let got = kept.row(row);
                        for p in got.iter().filter(|p| !want.contains(p)) {
                            let off = (scores[*p as usize] - edge).abs();
                            assert!(off < 2e-5, "{name} row {row}: position {p}");
                        }
                    }
                }
            }
        }
    }
}
