//! `conformance` as a user runs it, and what `doctor` says of the self-test.

use serde_json::Value;

use crate::support::{Folder, check_refusal, wgkv};

fn object(text: &str) -> Value {
    serde_json::from_str(text).expect("one JSON object")
}

const FEW: [&str; 5] = ["conformance", "--stages", "primitives/scan,nestedkv/gate", "--cases", "2"];

#[test]
fn a_table_for_people_without_colours_or_bars_in_a_pipe() {
    let run = wgkv(FEW);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(!run.stdout.contains('\u{1b}') && !run.stderr.contains('\u{1b}'));
    assert!(!run.stderr.contains("[="), "{}", run.stderr);
    let mut lines = run.stdout.lines();
    let head = lines.next().expect("a table");
    assert!(head.starts_with("stage") && head.ends_with("result"), "{head}");
    for stage in ["primitives/scan", "nestedkv/gate"] {
        let line = lines.next().expect("a row");
        assert!(line.starts_with(stage) && line.ends_with("passed"), "{line}");
    }
}

#[test]
fn one_json_object_and_a_folder_to_send_in() {
    let folder = Folder::new();
    let out = folder.path("report");
    let out_name = out.to_str().expect("a path");
    let run = wgkv([&FEW[..], &["--json", "-o", out_name]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = object(&run.stdout);
    assert_eq!(report["format"], "wgkv-conformance");
    assert_eq!(report["passed"], true);
    assert_eq!(report["stages"].as_array().map(Vec::len), Some(2));
    assert!(report["device"]["name"].is_string() && report["device"]["driver"].is_string());
    let saved = std::fs::read_to_string(out.join("report.json")).expect("a report");
    assert_eq!(object(&saved), report);
}

#[test]
fn a_case_in_a_file_is_run_again() {
    let folder = Folder::new();
    let case = r#"{"format":"wgkv-case","version":"0.1.0","stage":"nestedkv/keep","case":"property","number":0,"seed":77,"size":100}"#;
    let path = folder.write("case.json", case.as_bytes());
    let run = wgkv(["conformance", "--json", "--case", path.to_str().expect("a path")]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = object(&run.stdout);
    assert_eq!(report["stages"][0]["stage"], "nestedkv/keep");
    assert_eq!(report["stages"][0]["cases"], 1);
    for text in ["", "{}", "[1, 2]", &case.replace("nestedkv/keep", "nestedkv/kept")] {
        let path = folder.write("other.json", text.as_bytes());
        let run = wgkv(["conformance", "--case", path.to_str().expect("a path")]);
        check_refusal(&run, 2, &["other.json"], text);
    }
    let missing = folder.path("missing.json");
    let run = wgkv(["conformance", "--case", missing.to_str().expect("a path")]);
    check_refusal(&run, 2, &["missing.json"], "a file that is not there");
}

#[test]
fn random_cases_go_on_for_as_long_as_asked() {
    let args = ["conformance", "--stages", "primitives/scan", "--time", "1", "--json"];
    let start = std::time::Instant::now();
    let run = wgkv(args);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(start.elapsed().as_secs() >= 1);
    assert!(object(&run.stdout)["stages"][0]["cases"].as_u64() > Some(1), "{}", run.stdout);
}

#[test]
fn bad_flags_are_answered_like_help() {
    for (args, words) in [
        (&["--stages", "nested/"][..], &["nested/", "nestedkv"][..]),
        (&["--seed", "9007199254740992"], &["seed", "9007199254740991"]),
        (&["--cases", "many"], &["--cases", "many"]),
        (&["--cases", "1", "--time", "1"], &["--time"]),
        (&["--time", "0"], &["--time", "0"]),
        (&["--case", "x.json", "--seed", "1"], &["--case"]),
    ] {
        let run = wgkv([&["conformance"], args].concat());
        check_refusal(&run, 2, words, &format!("{args:?}"));
    }
    let run = wgkv(["conformance", "--backend", "cpu"]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains("doctor"), "{}", run.stderr);
}

#[test]
fn help_fits_a_screen() {
    let help = wgkv(["conformance", "--help"]).stdout;
    assert!(help.lines().count() <= 45, "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}

#[test]
fn doctor_tries_the_adapter_and_says_what_to_do() {
    let report = object(&wgkv(["doctor", "--json"]).stdout);
    if report["runs_on"] != "cpu" {
        assert_eq!(report["self_test"]["passed"], true, "{report}");
        assert!(wgkv(["doctor"]).stdout.contains("self-test passed"));
    }
    let software = report["runs_on"].as_str().is_some_and(|name| name.contains("software"));
    let hints = report["hints"].as_array().expect("hints");
    assert_eq!(hints.is_empty(), !software && report["runs_on"] != "cpu", "{hints:?}");
    let cpu = object(&wgkv(["doctor", "--backend", "cpu", "--json"]).stdout);
    assert!(cpu["self_test"].is_null());
    assert_eq!(cpu["hints"], serde_json::json!([]));
}

#[test]
fn stages_are_listed_without_an_adapter() {
    let all = wgkv(["conformance", "--list", "--backend", "cpu"]);
    let some = wgkv(["conformance", "--list", "--stages", "cache,whole", "--backend", "cpu"]);
    assert_eq!((all.code, some.code), (0, 0), "{}{}", all.stderr, some.stderr);
    let stages: Vec<&str> = wgkv::conformance::stages().collect();
    assert_eq!(all.stdout.lines().collect::<Vec<_>>(), stages);
    let wanted = |name: &&str| name.starts_with("cache/") || name.starts_with("whole/");
    let expected: Vec<&str> = stages.iter().copied().filter(wanted).collect();
    assert_eq!(some.stdout.lines().collect::<Vec<_>>(), expected);
    assert!(!expected.is_empty() && expected.len() < stages.len());
}
