//! What the program says of itself.

use std::collections::BTreeSet;

use crate::support::{check_refusal, wgkv};

const VERBS: [&str; 12] = [
    "doctor",
    "score",
    "evict",
    "budgets",
    "quantize",
    "dequantize",
    "compress",
    "attend",
    "replay",
    "inspect",
    "sweep",
    "conformance",
];

#[test]
fn every_verb_has_help_with_an_example_and_no_colour_in_a_pipe() {
    let run = wgkv(["--help"]);
    assert_eq!(run.code, 0);
    for verb in VERBS {
        assert!(run.stdout.contains(verb), "{verb} is not in --help");
        let help = wgkv([verb, "--help"]);
        assert_eq!(help.code, 0, "{verb}");
        assert_eq!(help.stderr, "", "{verb}");
        assert!(help.stdout.contains(&format!("wgkv {verb}")), "{verb}");
        assert!(help.stdout.contains("Example"), "{verb}");
        assert!(!help.stdout.contains('\u{1b}'), "{verb}");
        let all = wgkv([verb, "--help-all"]);
        for option in ["--backend", "--json"] {
            assert!(help.stdout.contains(option), "{verb} {option}");
        }
        assert!(all.stdout.contains("--adapter"), "{verb}");
    }
    assert!(run.stdout.contains("Example"), "{}", run.stdout);
    assert_eq!(wgkv(["help", "compress"]).stdout, wgkv(["compress", "--help"]).stdout);
    assert!(wgkv(["--version"]).stdout.starts_with("wgkv "));
}

#[test]
fn help_fits_a_narrow_screen_too() {
    for verb in VERBS.iter().copied().chain([""]) {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_wgkv"))
            .args([verb, "--help"].into_iter().filter(|word| !word.is_empty()))
            .env("COLUMNS", "80")
            .output()
            .expect("it starts");
        let help = String::from_utf8_lossy(&out.stdout);
        assert!(help.lines().count() <= 30, "{verb}:\n{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80 || line.contains("  wgkv")));
    }
}

/// Options that a verb of the program has.
fn options(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--"))).collect()
}

#[test]
fn help_fits_a_screen_and_help_all_has_the_rest() {
    for verb in VERBS.iter().copied().chain([""]) {
        let run = |option: &str| wgkv([verb, option].into_iter().filter(|word| !word.is_empty()));
        let [help, all] = [run("--help"), run("--help-all")];
        assert_eq!((help.code, all.code, all.stderr.as_str()), (0, 0, ""), "{verb}");
        assert!(help.stdout.lines().count() <= 24, "{verb}:\n{}", help.stdout);
        for line in help.stdout.lines().chain(all.stdout.lines()) {
            assert!(line.chars().count() <= 100, "{verb}: {line}");
        }
        let [shown, whole] = [options(&help.stdout), options(&all.stdout)];
        assert!(whole.contains("--help-all") && whole.contains("--adapter"), "{verb}: {whole:?}");
        assert!(shown.is_subset(&whole) && help.stdout.contains("--help-all"), "{verb}: {shown:?}");
        assert_eq!(help.stdout, run("-h").stdout, "{verb}");
        let none = ["doctor", "budgets", "sweep", "conformance"].contains(&verb);
        assert_eq!(whole.contains("--layers"), !none, "{verb}");
        for option in ["--window", "--sinks", "--rope-theta", "--codebook"] {
            let has = whole.contains(option);
            assert!(verb != "compress" || has && !shown.contains(option), "{verb} {option}");
        }
    }
}

#[test]
fn refusals_say_what_was_meant_and_where_to_read_on() {
    for (line, words) in [
        (["compress", "--kep", "0.5"], ["'--kep'", "'--keep'", "wgkv compress --help"]),
        (["compres", "x.st", "y.st"], ["'compres'", "'compress'", "wgkv --help"]),
        (["attend", "x.st", "--json"], ["--output", "not provided", "wgkv attend --help"]),
        (["sweep", "--methods", "scores"], ["scores", "attend-raw", "wgkv sweep --help"]),
    ] {
        check_refusal(&wgkv(line), 2, &words, &format!("{line:?}"));
    }
}

#[test]
fn nothing_at_all_is_answered_with_help_and_2() {
    let run = wgkv::<&str>([]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("Usage") || run.stdout.contains("Usage"));
}

#[test]
fn doctor_says_what_runs_where() {
    let cpu = wgkv(["doctor", "--backend", "cpu", "--json"]);
    assert_eq!(cpu.code, 0, "{}", cpu.stderr);
    let object: serde_json::Value = serde_json::from_str(&cpu.stdout).expect("one JSON object");
    assert_eq!(object["runs_on"], "cpu");
    let any = wgkv(["doctor", "--json"]);
    assert_eq!(any.code, 0, "{}", any.stderr);
    let object: serde_json::Value = serde_json::from_str(&any.stdout).expect("one JSON object");
    assert!(object["runs_on"].is_string());
    assert!(any.stderr.contains("running on"), "{}", any.stderr);
    let plain = wgkv(["doctor"]);
    assert!(plain.stdout.contains("every verb runs on"), "{}", plain.stdout);
}
