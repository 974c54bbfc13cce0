//! What the program says of itself.

use crate::support::wgkv;

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
        for option in ["--backend", "--adapter", "--json"] {
            assert!(help.stdout.contains(option), "{verb} {option}");
        }
    }
    assert!(wgkv(["--version"]).stdout.starts_with("wgkv "));
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
