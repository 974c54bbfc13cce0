//! The suite itself.

use wgkv::conformance::{Case, Config, Fixed, Outcome, Suite, stages, wait};

use crate::support;

/// Runs a suite to its end.
pub fn run(context: &wgkv::gpu::Context, config: &Config) -> Suite {
    let mut suite = Suite::new(config).expect("a suite");
    while let Some(case) = suite.next_case() {
        let outcome = wait(context, case.run(context));
        suite.add(&case, outcome);
    }
    suite
}

/// Reference cases, random cases, and of the cases that go through variants those of the stages whose
/// shaders are built quickly.
#[test]
fn this_device_passes() {
    let quick = ["primitives", "nestedkv", "cache/rows", "cache/write", "cache/keep"];
    let quick = quick.map(String::from).to_vec();
    let fixed = Config { cases: 2, stages: quick, ..Config::default() };
    let random = Config { cases: 2, fixed: Fixed::Nothing, seed: 3, ..Config::default() };
    for config in [fixed, random] {
        let context = support::context();
        let report = run(context, &config).report(context);
        for stage in &report.stages {
            assert_eq!(stage.failure, None, "{}: {:?}", stage.stage, stage.case);
            assert!(stage.cases > 0 && stage.compared > 0, "{stage:?}");
        }
        assert!(report.passed());
    }
}

#[test]
fn the_order_of_cases_goes_by_the_seed_alone() {
    let names = |seed| -> Vec<String> {
        let config = Config { cases: 3, seed, ..Config::default() };
        let mut suite = Suite::new(&config).expect("a suite");
        let count = suite.remaining();
        let names: Vec<String> =
            std::iter::from_fn(|| suite.next_case()).map(|case| case.to_json()).collect();
        assert_eq!(names.len() as u64, count);
        assert!(suite.only_random_left() && suite.remaining() == 0);
        names
    };
    assert_eq!(names(1), names(1));
    let (one, two) = (names(1), names(2));
    let fixed = one.iter().filter(|name| !name.contains("property")).count();
    assert_eq!(one[..fixed], two[..fixed]);
    assert!(one[fixed..].iter().zip(&two[fixed..]).all(|(a, b)| a != b));
    // A round goes through every stage.
    let all = stages().count();
    assert_eq!(one.len() - fixed, 3 * all);
    let round = one[fixed..fixed + all].iter().zip(stages());
    assert!(round.into_iter().all(|(name, stage)| name.contains(stage)));
    let distinct: std::collections::BTreeSet<&String> = one.iter().collect();
    assert_eq!(distinct.len(), one.len());
}

#[test]
fn a_first_look_has_every_stage() {
    let names = |seed| -> Vec<String> {
        let config = Config { cases: 0, seed, fixed: Fixed::Few, ..Config::default() };
        let mut suite = Suite::new(&config).expect("a suite");
        let cases = std::iter::from_fn(|| suite.next_case());
        cases.map(|case| case.to_json()).collect()
    };
    let all = names(1);
    assert_eq!(all, names(2));
    for stage in stages() {
        let own = all.iter().filter(|case| case.contains(&format!("\"{stage}\""))).count();
        assert!((1..=2).contains(&own), "{stage}: {own}");
    }
}

#[test]
fn cases_are_kept_and_run_again() {
    let context = support::context();
    let config = Config { cases: 1, stages: vec!["nestedkv/gate".into()], ..Config::default() };
    let mut suite = Suite::new(&config).expect("a suite");
    let case = suite.next_case().expect("a case");
    let again = Case::from_json(&case.to_json()).expect("the same case");
    assert_eq!(again, case);
    assert_eq!(again.name(), case.name());
    let outcomes = [case, again].map(|case| wait(context, case.run(context)));
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn texts_that_are_no_cases_are_refused() {
    let good = r#"{"format":"wgkv-case","stage":"nestedkv/gate","case":"property","number":0,"seed":5,"size":100}"#;
    assert!(Case::from_json(good).is_ok());
    for (from, to, said) in [
        (good, "", "JSON"),
        (good, "[]", "format"),
        ("wgkv-case", "other", "format"),
        ("nestedkv/gate", "nestedkv/gat", "nestedkv/gat"),
        ("property", "reference", "no such case"),
        ("property", "variant", "no such case"),
        ("\"seed\":5", "\"seed\":-5", "seed"),
        ("\"size\":100", "\"size\":101", "size"),
        ("\"size\":100", "\"size\":null", "size"),
    ] {
        let error = Case::from_json(&good.replace(from, to)).expect_err(to).to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn what_fails_is_made_smaller_and_told() {
    let config =
        Config { cases: 2, fixed: Fixed::Nothing, stages: vec!["nestedkv/gate".into()], seed: 9 };
    let mut suite = Suite::new(&config).expect("a suite");
    let mut sizes = Vec::new();
    while let Some(case) = suite.next_case() {
        let size: serde_json::Value = serde_json::from_str(&case.to_json()).expect("JSON");
        let size = size["size"].as_u64().expect("a size");
        sizes.push(size);
        let failure = (size >= 25).then(|| format!("fails at {size}"));
        suite.add(&case, Outcome { compared: 1, worst: None, failure });
    }
    assert_eq!(sizes, [100, 50, 25, 12, 100]);
    let context = support::context();
    let report = suite.report(context);
    let stage = &report.stages[0];
    assert_eq!((stage.cases, stage.failed), (2, 2));
    assert_eq!(stage.failure.as_deref(), Some("fails at 25"));
    assert!(stage.case.as_ref().is_some_and(|case| case.contains("\"size\":25")));
    assert!(!report.passed());
    let object: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!(object["passed"], false);
    assert_eq!(object["stages"][0]["stage"], "nestedkv/gate");
    for key in ["name", "backend", "driver", "features", "limits"] {
        assert!(!object["device"][key].is_null(), "{key}");
    }
    assert!(object["device"]["limits"]["max_buffer_size"].is_u64());
}

#[test]
fn stages_and_seeds_that_there_are_not_are_refused() {
    let config = Config { stages: vec!["nested/".into()], ..Config::default() };
    assert!(Suite::new(&config).expect_err("no stage").to_string().contains("stage"));
    let config = Config { seed: 1 << 53, ..Config::default() };
    assert!(Suite::new(&config).expect_err("a seed").to_string().contains("seed"));
}
