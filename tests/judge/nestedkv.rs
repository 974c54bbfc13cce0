use wgkv::judge::nestedkv::{Constants, budgets, keep, score};

use crate::support::golden::{Golden, index};

fn close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what}[{i}]: {a} against {b}");
    }
}

#[test]
fn scores_equal_the_truth() {
    let file = Golden::open("nestedkv_cases.safetensors");
    let mut seen = 0;
    for case in index()["nestedkv"].as_array().expect("cases") {
        let name = case["case"].as_str().expect("a name");
        if !file.has(&format!("{name}/keys")) {
            continue;
        }
        let number = |name: &str| case["hyper"][name].as_f64().expect("a number");
        let constants = Constants {
            window: number("window") as usize,
            beta: number("beta"),
            tau: number("tau"),
            kappa: number("kappa"),
            prior: core::array::from_fn(|k| case["hyper"]["prior"][k].as_f64().expect("a prior")),
            ..Constants::default()
        };
        let shape = file.shape(&format!("{name}/keys"));
        let (rows, n, head_dim) = (shape[0], shape[1], shape[2]);
        let keys = file.numbers(&format!("{name}/keys"));
        let finals = file.numbers(&format!("{name}/truth_final"));
        let blends = file.numbers(&format!("{name}/truth_blend"));
        let scales = file.numbers(&format!("{name}/truth_scales"));
        let weights = file.numbers(&format!("{name}/truth_weights"));
        if case["ill_conditioned"] == true {
            continue;
        }
        seen += 1;
        for row in 0..rows {
            let part = row * n..(row + 1) * n;
            let scored = score(&keys[row * n * head_dim..][..n * head_dim], head_dim, &constants);
            close(&scored.score, &finals[part.clone()], 1e-9, name);
            close(&scored.blend, &blends[part.clone()], 1e-9, name);
            for k in 0..3 {
                let scale = &scales[(k * rows + row) * n..][..n];
                close(&scored.scales[k], scale, 1e-9, name);
                close(&scored.weights[k..=k], &weights[k * rows + row..][..1], 1e-9, name);
            }
            for (index, kept) in case["kept"].as_array().expect("kept sets").iter().enumerate() {
                let sinks = kept["n_sink"].as_u64().expect("sinks") as usize;
                let budget = kept["budget"].as_u64().expect("a budget") as usize;
                let truth = file.numbers(&format!("{name}/kept{index}_truth"));
                let count = truth.len() / rows;
                let got: Vec<f64> =
                    keep(&scored.score, sinks, budget).into_iter().map(f64::from).collect();
                close(&got, &truth[row * count..(row + 1) * count], 0.0, name);
            }
        }
    }
    assert!(seen >= 5, "{seen} cases");
}

#[test]
fn budgets_are_those_of_the_peer() {
    let file = Golden::open("nestedkv_budget_scores.safetensors");
    let index = index();
    let cases = index["head_budgets"].as_array().expect("cases");
    assert_eq!(cases.len(), 282);
    for case in cases {
        let list = case["list"].as_str().expect("a list");
        let heads: Vec<Vec<f64>> = (0..case["lengths"].as_array().expect("lengths").len())
            .map(|h| file.numbers(&format!("{list}/head{h}")))
            .collect();
        let total = case["total_budget"].as_u64().expect("a total") as usize;
        let got = budgets(&heads, total, case["alpha"].as_f64().expect("a safeguard"));
        let expected: Vec<usize> = case["expected"]
            .as_array()
            .expect("budgets")
            .iter()
            .map(|b| b.as_u64().expect("a budget") as usize)
            .collect();
        assert_eq!(got, expected, "{list}, total {total}, safeguard {}", case["alpha"]);
    }
}
