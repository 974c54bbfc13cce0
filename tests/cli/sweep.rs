//! `sweep` at tiny sizes: what it prints and writes, and that its results hold. No time is judged.

use serde_json::Value;

use crate::support::{Folder, wgkv};

const TINY: [&str; 10] =
    ["sweep", "--tokens", "64,130", "--heads", "2", "--dim", "16", "--repeats", "1", "--warmup=0"];

fn lines(args: &[&str]) -> Vec<Value> {
    let mut line = TINY.to_vec();
    line.extend(args);
    line.push("--json");
    let run = wgkv(&line);
    assert_eq!(run.code, 0, "{line:?}: {}", run.stderr);
    assert!(!run.stderr.contains('\u{1b}'), "{}", run.stderr);
    run.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

#[test]
fn every_method_is_timed_and_checked_on_a_gpu() {
    let found = lines(&[
        "--adaptive",
        "--bits",
        "1,2",
        "--group",
        "1,4",
        "--stages",
        "--methods",
        "score,select,compact,keep,evict,encode,attend-raw,attend-packed,attend-paged",
    ]);
    // 3 + 2 x 2 selections, 2 rates to encode, 2 groups raw, 4 packed, 4 in pages; twice.
    assert_eq!(found.len(), 2 * 19);
    for line in &found {
        let on_gpu = line["device"] != "cpu";
        assert!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{line}");
        assert!(line["operations"].as_u64().is_some_and(|count| count > 0), "{line}");
        assert!(line["median_ms"].as_f64().is_some_and(|time| time > 0.0), "{line}");
        assert!(line["of_copy"].as_f64().is_some_and(|share| share > 0.0), "{line}");
        assert_eq!(line["error"].is_number(), on_gpu, "{line}");
        assert_eq!(line["stages"].is_array(), on_gpu, "{line}");
    }
}

#[test]
fn profiles_and_presets_are_told_apart_and_the_baseline_does_too() {
    let found = lines(&[
        "--baseline",
        "--profile",
        "compat,tuned",
        "--bits",
        "1",
        "--presets",
        "2.75",
        "--methods",
        "encode,attend-packed",
    ]);
    assert_eq!(found.len(), 2 * 6);
    let packings = [r#""compat" 1 1 null"#, r#""tuned" 1 1 null"#, r#""tuned" 3 2 2.75"#];
    for (line, packing) in found.iter().zip(packings.iter().cycle()) {
        assert_eq!(self::packing(line), *packing, "{line}");
        assert_eq!(line["baseline"], line["device"] != "cpu", "{line}");
    }
}

/// As in other verbs: the default preset, and `compat` for those who name bits alone.
#[test]
fn what_is_packed_by_default_is_the_default_preset() {
    for (args, expected) in [
        (&[][..], &[r#""tuned" 3 2 2.75"#][..]),
        (&["--bits", "1,2"], &[r#""compat" 1 1 null"#, r#""compat" 2 2 null"#]),
        (&["--chunk", "32"], &[r#""compat" 2 2 null"#]),
        (&["--profile", "tuned"], &[r#""tuned" 2 2 null"#]),
        (&["--presets", "4.25"], &[r#""tuned" 4 4 4.25"#]),
        (&["--bits", "1", "--presets", "4.25"], &[r#""compat" 1 1 null"#, r#""tuned" 4 4 4.25"#]),
    ] {
        let methods = ["--backend", "cpu", "--methods", "encode"];
        let found = lines(&[&methods, args].concat());
        let packings: Vec<String> = found.iter().map(packing).collect();
        assert_eq!(packings, [expected, expected].concat(), "{args:?}");
    }
}

/// Profile, bits of keys and values, and the preset of a line.
fn packing(line: &Value) -> String {
    ["profile", "bits", "value_bits", "preset"].map(|field| line[field].to_string()).join(" ")
}

/// Bytes of a row in a pool at 2 bits of 16 channels, by the rules of the default preset: 4 sinks and 16
/// recent tokens are raw, and what does not fill a chunk.
fn held(tokens: usize, packed_bytes: usize) -> usize {
    let packed = tokens.saturating_sub(4 + 16) / 64;
    packed * packed_bytes + (tokens - 64 * packed) * 2 * 16 * 2
}

#[test]
fn heads_of_uneven_length_stand_beside_even_ones() {
    for more in [&["--beside-baseline"][..], &["--backend", "cpu"]] {
        let methods = "attend-packed,attend-paged";
        let args = ["--tokens", "200", "--heads", "3", "--ragged", "--methods", methods, "--group"];
        let found = {
            let tiny =
                ["sweep", "--json", "--dim=16", "--bits=2", "--repeats", "1", "--warmup", "0"];
            let run = wgkv(tiny.iter().chain(&args).chain(&["2"]).chain(more));
            assert_eq!(run.code, 0, "{}", run.stderr);
            let lines = run.stdout.lines();
            lines.map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>()
        };
        let on_gpu = found[0]["device"] != "cpu";
        assert_eq!(found.len(), if on_gpu { 6 } else { 3 });
        let bytes = |line: &Value| line["bytes"].as_u64().expect("bytes") as usize;
        // Chunks of the rows side by side: 3 of 64 tokens a row.
        let ends = 3 * 2 * 2 * 2 * 16;
        let chunk = (bytes(&found[0]) - ends) / 9;
        for (line, place) in found.iter().zip(0..) {
            let kind = if on_gpu { place / 2 } else { place };
            let ragged = [Value::Null, false.into(), true.into()];
            assert_eq!(line["ragged"], ragged[kind], "{line}");
            assert_eq!(line["baseline"], on_gpu && place % 2 == 1, "{line}");
            assert_eq!(line["of_best"].is_number(), on_gpu && place % 2 == 1, "{line}");
            assert_eq!(line["of_even"].is_number(), kind == 2, "{line}");
            assert_eq!(line["error"].is_number(), on_gpu, "{line}");
            let rows = [[0; 3], [200; 3], [320, 80, 200]][kind];
            let expected: usize = rows.iter().map(|tokens| held(*tokens, chunk)).sum();
            assert!(kind == 0 || bytes(line) == expected + ends, "{expected} {line}");
        }
    }
}

#[test]
fn pages_filled_token_by_token_stand_beside_those_of_a_prompt() {
    for engine in [&[][..], &["--backend", "cpu"]] {
        let mut args = vec!["--tokens", "150", "--stepped", "--methods", "attend-paged"];
        args.extend(["--presets", "2.75", "--bits", "2", "--dim", "16", "--heads", "2"]);
        args.extend(["--batch", "2", "--repeats", "1", "--warmup", "0", "--json"]);
        let run = wgkv(["sweep"].iter().chain(&args).chain(engine));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let found: Vec<Value> =
            run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(found.len(), 4);
        for pair in found.chunks(2) {
            let [prompt, stepped] = pair else { panic!("{pair:?}") };
            assert_eq!([&prompt["stepped"], &stepped["stepped"]], [false, true]);
            assert_eq!(prompt["bytes"], stepped["bytes"]);
            assert_eq!(prompt["dispatches"], stepped["dispatches"]);
            assert!(prompt["of_prompt"].is_null() && stepped["of_prompt"].is_number());
            let on_gpu = stepped["device"] != "cpu";
            assert!(pair.iter().all(|line| line["error"].is_number() == on_gpu), "{pair:?}");
        }
    }
}

#[test]
fn the_cpu_path_is_timed_too() {
    let found = lines(&["--backend", "cpu"]);
    assert_eq!(found.len(), 2 * 7);
    assert!(found.iter().all(|line| line["device"] == "cpu" && line["clock"] == "wall"));
}

#[test]
fn a_table_without_colours_and_files_with_plots() {
    let folder = Folder::new();
    let out = folder.path("report");
    let mut line: Vec<std::ffi::OsString> = TINY.iter().map(Into::into).collect();
    line.extend(["--backend", "cpu", "--methods", "score,encode", "-o"].map(Into::into));
    line.push(out.clone().into());
    let run = wgkv(&line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(!run.stdout.contains('\u{1b}') && run.stdout.contains("GB/s"), "{}", run.stdout);
    assert_eq!(run.stdout.lines().count(), 5, "{}", run.stdout);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(read("sweep.jsonl").lines().count(), 4);
    let csv = read("sweep.csv");
    let columns = |line: &str| line.split(',').count();
    assert_eq!(csv.lines().count(), 5);
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap_or(""))));
    for name in ["time.svg", "linear.svg", "bytes.svg", "roofline.svg"] {
        let svg = read(name);
        assert!(svg.starts_with("<svg") && svg.contains("score"), "{name}");
        // Greys alone: every colour has three equal parts.
        for colour in svg.split("=\"#").skip(1).map(|rest| &rest[..6]) {
            assert!(colour[..2] == colour[2..4] && colour[2..4] == colour[4..], "#{colour}");
        }
    }
}

#[test]
fn what_no_sweep_can_mean_is_refused() {
    for (args, word) in [
        (["--tokens", "0"], "--tokens"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--keep", "1.5"], "--keep"),
        (["--bits", "9"], "--bits"),
        (["--presets", "1"], "target bits"),
        (["--dim", "13"], "--dim"),
        (["--batch", "400000000000"], "4294967296"),
    ] {
        let run = wgkv(["sweep", "--backend", "cpu", args[0], args[1]]);
        assert_eq!(run.code, 2, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(word), "{args:?}: {}", run.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn shapes_beyond_the_memory_are_refused() {
    let line = "ulimit -v 4000000 && exec \"$0\" sweep --backend cpu --methods evict --heads 1 \
                --dim 8 --tokens 536870911";
    let run = std::process::Command::new("sh")
        .args(["-c", line, env!("CARGO_BIN_EXE_wgkv")])
        .output()
        .expect("a shell");
    let words = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{words}");
    assert!(words.contains("4294967288 elements does not fit in memory"), "{words}");
}
