//! `replay`: appends, trims and forks, step by step.

use serde_json::{Value, json};

use crate::support::{File, Folder, f32s, noise, pair, tensor, tensors, wgkv};

const BACKENDS: [&str; 2] = ["cpu", "auto"];

/// Runs a list of operations; returns a JSON line for each and the messages.
fn replay(folder: &Folder, input: &File, ops: &Value, args: &[&str]) -> (Vec<Value>, String) {
    let input = folder.write("kv.st", &input.bytes());
    let ops = folder.write("ops.json", ops.to_string().as_bytes());
    let mut line = vec!["replay".into(), input.into_os_string(), "--ops".into()];
    line.extend([
        ops.into_os_string(),
        "-o".into(),
        folder.path("steps.st").into(),
        "--json".into(),
    ]);
    line.extend(args.iter().map(Into::into));
    let run = wgkv(&line);
    assert_eq!(run.code, 0, "{line:?}: {}", run.stderr);
    let lines = run.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON line"));
    (lines.collect(), run.stderr)
}

fn column(lines: &[Value], name: &str) -> Vec<u64> {
    lines.iter().map(|line| line[name].as_u64().unwrap_or_else(|| panic!("{name}"))).collect()
}

#[test]
fn counts_and_shapes_of_every_step() {
    let input = pair([1, 2, 200, 64]);
    let ops = json!([{"append": 70}, {"append": 0}, {"append": 80}, {"trim": 0}, {"trim": 100}]);
    for backend in BACKENDS {
        let folder = Folder::new();
        let (lines, _) = replay(&folder, &input, &ops, &["--bits", "2", "--backend", backend]);
        assert_eq!(column(&lines, "step"), [0, 1, 2, 3, 4]);
        assert_eq!(column(&lines, "len"), [70, 70, 150, 150, 50]);
        assert_eq!(column(&lines, "quantized_tokens"), [0, 0, 128, 128, 0]);
        assert_eq!(column(&lines, "residual_fp16_bytes"), [70, 70, 22, 22, 50].map(|n| n * 512));
        assert_eq!(column(&lines, "compressed_key_bytes"), [0, 0, 5632, 5632, 0]);
        assert_eq!(column(&lines, "device_bytes")[2], 2 * 5632 + 22 * 512);
        assert_eq!(lines[0]["assigned_avg_bits"], 16.0);
        assert_eq!(lines[2]["assigned_avg_bits"], 2.75);
        let out = folder.path("steps.st");
        assert_eq!(tensors(&out).len(), 10);
        assert_eq!(tensor(&out, "step.2.k").1, [1, 2, 150, 64]);
        let came = tensor(&folder.path("kv.st"), "layers.0.v").2;
        let shown = tensor(&out, "step.0.v").2;
        assert_eq!(shown[..70 * 128], came[..70 * 128]);
        assert_eq!(shown[70 * 128..], came[200 * 128..270 * 128]);
    }
}

#[test]
fn forks_share_what_they_have_in_common() {
    let ops = json!([
        {"append": 130}, {"fork": "a"}, {"fork": "b"}, {"use": "a"}, {"append": 62},
        {"use": "b"}, {"append": 62}, {"use": "a"}, {"trim": 100}, {"free": "main"},
        {"use": "b"}, {"free": "a"}, {"free": "b"},
    ]);
    let args = ["--bits", "2", "--sinks", "0", "--recent", "0", "--backend"];
    for backend in BACKENDS {
        let folder = Folder::new();
        let (lines, _) =
            replay(&folder, &pair([1, 2, 254, 64]), &ops, &[&args[..], &[backend]].concat());
        let page = 2 * 2 * (64 * 16 + 64 * 4 + 128);
        let tail = 2 * 2 * 2 * 64;
        let held = column(&lines, "device_bytes");
        let expected = [
            2 * page + 2 * tail,
            2 * page + 2 * tail,
            2 * page + 2 * tail,
            2 * page + 2 * tail,
            3 * page + 2 * tail,
            3 * page + 2 * tail,
            4 * page + 2 * tail,
            4 * page + 2 * tail,
            3 * page + 2 * tail + 28 * tail,
            3 * page + 28 * tail,
            3 * page + 28 * tail,
            3 * page,
            0,
        ];
        assert_eq!(held, expected);
        assert_eq!(
            column(&lines, "len"),
            [130, 130, 130, 130, 192, 130, 192, 192, 92, 92, 192, 192, 0]
        );
        let out = folder.path("steps.st");
        let rows = |step: usize, n: usize| -> Vec<Vec<u8>> {
            let (_, shape, bytes) = tensor(&out, &format!("step.{step}.k"));
            bytes.chunks(shape[2] * 128).map(|row| row[..n * 128].to_vec()).collect()
        };
        assert_eq!(rows(0, 128), rows(6, 128), "a fork keeps the chunks of its origin");
        assert_eq!(rows(4, 92), rows(8, 92), "rows come back as they decode");
        assert_eq!(rows(6, 192), rows(10, 192), "what one fork does leaves the other alone");
    }
}

#[test]
fn keys_and_values_of_different_width_and_rate() {
    for (dk, dv) in [(192, 128), (64, 256), (80, 112)] {
        let input = File::new().f16("layers.0.k", &[2, 3, 230, dk], &noise(1, 6 * 230 * dk)).f16(
            "layers.0.v",
            &[2, 3, 230, dv],
            &noise(2, 6 * 230 * dv),
        );
        let ops =
            json!([{"append": 200}, {"fork": "a"}, {"trim": 70}, {"append": 30}, {"use": "a"}]);
        let ends = BACKENDS.map(|backend| {
            let folder = Folder::new();
            let args = ["--k-bits", "2", "--v-bits", "1", "--backend", backend];
            let (lines, _) = replay(&folder, &input, &ops, &args);
            let out = folder.path("steps.st");
            assert_eq!(tensor(&out, "step.3.k").1, [2, 3, 160, dk]);
            assert_eq!(tensor(&out, "step.3.v").1, [2, 3, 160, dv]);
            for t in ["k", "v"] {
                assert_eq!(
                    tensor(&out, &format!("step.0.{t}")),
                    tensor(&out, &format!("step.4.{t}"))
                );
            }
            let bytes = |d: u64, bits: u64| 6 * 2 * (64 * d * bits / 8 + 256 + 2 * d);
            assert_eq!(lines[0]["compressed_key_bytes"], bytes(dk as u64, 2));
            assert_eq!(lines[0]["compressed_value_bytes"], bytes(dv as u64, 1));
            assert_eq!(lines[0]["fp16_key_bytes"], 6 * 200 * dk * 2);
            assert_eq!(lines[0]["fp16_value_bytes"], 6 * 200 * dv * 2);
            (lines, f32s(&out, "step.3.k"), f32s(&out, "step.3.v"))
        });
        let [(host, hk, hv), (device, gk, gv)] = ends;
        assert_eq!(host, device);
        for (a, b) in [(hk, gk), (hv, gv)] {
            let far = a.iter().zip(&b).filter(|(a, b)| (*a - *b).abs() > 1e-2).count();
            // A code near a tie may fall on either side and changes one token row.
            assert!(far * 100 <= a.len(), "{far} of {}", a.len());
        }
    }
}

#[test]
fn a_trim_of_more_than_there_is_drops_all_and_says_so() {
    let folder = Folder::new();
    let ops = json!([{"append": 9}, {"trim": 500}, {"append": 3}]);
    let (lines, said) = replay(&folder, &pair([1, 1, 12, 64]), &ops, &["--backend", "cpu"]);
    assert_eq!(column(&lines, "len"), [9, 0, 3]);
    assert!(said.contains("step 1: trim of 500 tokens drops all 9"), "{said}");
    assert_eq!(tensor(&folder.path("steps.st"), "step.1.k").1, [1, 1, 0, 64]);
}

#[test]
fn values_beyond_f16_survive_as_bf16_or_are_refused_by_name() {
    let mut values = noise(1, 200 * 64);
    values[64 * 100 + 5] = 1e6;
    let shape = [1, 1, 200, 64];
    let wide = File::new().bf16("layers.0.k", &shape, &values).bf16("layers.0.v", &shape, &values);
    let ops = json!([{"append": 200}]);
    for backend in BACKENDS {
        let folder = Folder::new();
        let (lines, said) = replay(&folder, &wide, &ops, &["--backend", backend]);
        assert_eq!(lines[0]["quantized_tokens"], 128);
        assert!(said.contains("65504"), "{said}");
        let shown = f32s(&folder.path("steps.st"), "step.0.k");
        assert!(shown[64 * 100 + 5] > 5e4, "{}", shown[64 * 100 + 5]);
        assert!(shown.iter().all(|x| x.is_finite()));
    }
    let folder = Folder::new();
    let full = File::new().f32("layers.0.k", &shape, &values).f32("layers.0.v", &shape, &values);
    let input = folder.write("kv.st", &full.bytes());
    let ops = folder.write("ops.json", ops.to_string().as_bytes());
    let ops = ops.to_str().expect("a path");
    folder.refuses("replay", &input, &["--ops", ops], &["kv.st", "layers.0.k", "1000000", "100"]);
}

#[test]
fn refuses_what_it_cannot_do() {
    let folder = Folder::new();
    let input = folder.write("kv.st", &pair([1, 1, 12, 64]).bytes());
    let refuses = |ops: &str, words: &[&str]| {
        let ops = folder.write("ops.json", ops.as_bytes());
        let ops = ops.to_str().expect("a path");
        folder.refuses("replay", &input, &["--ops", ops, "--backend", "cpu"], words);
    };
    refuses("[{\"append\": 13}]", &["ops.json", "step 0", "13", "12"]);
    refuses("[{\"append\": -1}]", &["ops.json", "step 0", "-1"]);
    refuses("[{\"jump\": 1}]", &["ops.json", "step 0", "jump"]);
    refuses("[{\"use\": \"x\"}]", &["ops.json", "step 0", "x"]);
    refuses("[{\"fork\": \"x\"}, {\"fork\": \"x\"}]", &["ops.json", "step 1", "x"]);
    refuses("{}", &["ops.json", "list"]);
    refuses("[", &["ops.json", "JSON"]);
    let ops = folder.write("ops.json", b"[]");
    let ops = ops.to_str().expect("a path");
    for (args, words) in [
        (&["--bits", "3"][..], &["3"][..]),
        (&["--chunk", "1"], &["chunk", "1"]),
        (&["--recent", "4294967295"], &["recent", "4294967295"]),
        (&["--profile", "paper"], &["paper"]),
    ] {
        folder.refuses("replay", &input, &[&["--ops", ops], args].concat(), words);
    }
    let missing = folder.path("none.json");
    folder.refuses("replay", &input, &["--ops", missing.to_str().expect("a path")], &["none.json"]);
    let two = pair([1, 1, 4, 64]).f16("layers.1.k", &[1, 1, 4, 64], &noise(1, 256)).f16(
        "layers.1.v",
        &[1, 1, 4, 64],
        &noise(1, 256),
    );
    let two = folder.write("two.st", &two.bytes());
    folder.refuses("replay", &two, &["--ops", ops], &["two.st", "2 layers", "--layers"]);
    let mla = File::new().f16("layers.0.k", &[1, 1, 4, 576], &noise(1, 4 * 576)).f16(
        "layers.0.v",
        &[1, 1, 4, 512],
        &noise(1, 4 * 512),
    );
    let mla = folder.write("mla.st", &mla.bytes());
    folder.refuses("replay", &mla, &["--ops", ops], &["mla.st", "layers.0.k", "576"]);
}
