//! Good input: what comes out, and how.

use half::f16;
use serde_json::Value;

use crate::support::{File, Folder, f32s, noise, pair, tensor, tensors, u32s, wgkv};

const CPU: [&str; 2] = ["--backend", "cpu"];

fn json(verb: &str, input: &std::path::Path, args: &[&str]) -> Value {
    let mut line = vec![verb.into(), input.as_os_str().to_owned()];
    line.extend(args.iter().map(Into::into));
    line.push("--json".into());
    let run = wgkv(&line);
    assert_eq!(run.code, 0, "{line:?}: {}", run.stderr);
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
    serde_json::from_str(&run.stdout).expect("one JSON object")
}

#[test]
fn scores_have_the_shape_of_the_keys_and_parts_on_request() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([2, 3, 50, 16]).bytes());
    let plain = folder.run("score", &path, "s.st", &CPU);
    assert_eq!(tensors(&plain), ["layers.0.score"]);
    let (dtype, shape, _) = tensor(&plain, "layers.0.score");
    assert_eq!((dtype.as_str(), shape), ("F32", vec![2, 3, 50]));
    let parts = folder.run("score", &path, "p.st", &["--parts", "--backend", "cpu"]);
    assert_eq!(tensors(&parts).len(), 5);
    for part in ["scale_s", "scale_e", "scale_c", "blend", "score"] {
        let values = f32s(&parts, &format!("layers.0.{part}"));
        assert_eq!(values.len(), 300);
        assert!(values.iter().all(|v| (0.0..=1.0).contains(v)), "{part}");
    }
}

#[test]
fn evicted_rows_are_the_input_rows_at_their_positions() {
    let folder = Folder::new();
    let (rows, n, d) = (6, 50, 16);
    let path = folder.write("x.st", &pair([2, 3, n, d]).bytes());
    for heads in ["uniform", "adaptive"] {
        let out = folder.run(
            "evict",
            &path,
            "e.st",
            &["--budget", "20", "--heads", heads, "--backend", "cpu"],
        );
        let (offsets, positions) =
            (u32s(&out, "layers.0.offsets"), u32s(&out, "layers.0.positions"));
        assert_eq!(offsets.len(), rows + 1);
        assert_eq!(offsets[rows], 120);
        assert_eq!(offsets[3], 60, "each sequence gets the budget of its heads");
        if heads == "uniform" {
            assert!(offsets.windows(2).all(|w| w[1] - w[0] == 20));
        }
        for (name, seed) in [("layers.0.k", 1), ("layers.0.v", 2)] {
            let input = noise(seed, rows * n * d);
            let kept = f32s(&out, name);
            for row in 0..rows {
                let range = offsets[row] as usize..offsets[row + 1] as usize;
                assert_eq!(positions[range.clone()][..4], [0, 1, 2, 3], "sinks");
                for at in range {
                    let from = (row * n + positions[at] as usize) * d;
                    for c in 0..d {
                        assert_eq!(kept[at * d + c], f16::from_f32(input[from + c]).to_f32());
                    }
                }
            }
        }
    }
}

#[test]
fn budgets_below_the_sinks_keep_the_sinks_and_say_so() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 30, 16]).bytes());
    let out = folder.path("e.st");
    let run = wgkv([
        "evict",
        path.to_str().expect("plain"),
        "-o",
        out.to_str().expect("plain"),
        "--budget",
        "2",
    ]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("below the 4 sinks"), "{}", run.stderr);
    assert_eq!(u32s(&out, "layers.0.positions"), [0, 1, 2, 3, 0, 1, 2, 3]);
    let none = folder.run("evict", &path, "n.st", &["--budget", "0", "--sinks", "0"]);
    assert_eq!(u32s(&none, "layers.0.offsets"), [0, 0, 0]);
}

#[test]
fn budgets_are_printed_as_one_object() {
    let folder = Folder::new();
    let heads = File::new()
        .f32("head.0", &[4], &[0.9, 0.8, 0.1, 0.1])
        .f32("head.1", &[0], &[])
        .f32("head.2", &[3], &[0.5, 0.4, 0.3]);
    let path = folder.write("h.st", &heads.bytes());
    let object = json("budgets", &path, &["--total", "4"]);
    assert_eq!(object["budgets"], serde_json::json!([2, 0, 2]));
    assert_eq!(json("budgets", &path, &["--total", "99"])["budgets"], serde_json::json!([4, 0, 3]));
    assert_eq!(json("budgets", &path, &["--total", "0"])["budgets"], serde_json::json!([0, 0, 0]));
    let gap = File::new().f32("head.0", &[1], &[0.1]).f32("head.2", &[1], &[0.1]);
    let path = folder.write("g.st", &gap.bytes());
    folder.refuses("budgets", &path, &["--total", "1"], &["head.1", "missing"]);
    folder.refuses("budgets", &path, &["--total", "1", "--safeguard", "2"], &["head.1"]);
}

#[test]
fn raw_rows_come_back_bit_for_bit_and_packed_rows_close() {
    let folder = Folder::new();
    let (n, d) = (150, 32);
    let path = folder.write("x.st", &pair([1, 2, n, d]).bytes());
    let packed = folder.run("quantize", &path, "p.st", &CPU);
    let back = folder.run("dequantize", &packed, "d.st", &CPU);
    assert_eq!(tensors(&back), ["layers.0.k", "layers.0.v"]);
    for (name, seed) in [("layers.0.k", 1), ("layers.0.v", 2)] {
        let (dtype, shape, _) = tensor(&back, name);
        assert_eq!((dtype.as_str(), shape), ("F16", vec![1, 2, n, d]));
        let input = noise(seed, 2 * n * d);
        let output = f32s(&back, name);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (i, (x, y)) in input.iter().zip(&output).enumerate() {
            let token = i / d % n;
            let x = f16::from_f32(*x).to_f32();
            // 4 sinks, then chunks of 64 while 16 newest rows stay raw.
            if (4..132).contains(&token) {
                difference += f64::from(x - y).powi(2);
                norm += f64::from(x).powi(2);
            } else {
                assert_eq!(x, *y, "{name} token {token}");
            }
        }
        let error = (difference / norm).sqrt();
        assert!(error > 0.01 && error < 0.4, "{name}: {error}");
    }
}

#[test]
fn an_evicted_file_is_packed_and_restored_ragged() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 3, 300, 32]).bytes());
    let args = ["--budget", "120", "--heads", "adaptive", "--backend", "cpu"];
    let evicted = folder.run("evict", &path, "e.st", &args);
    let packed = folder.run("quantize", &evicted, "p.st", &["--chunk", "16", "--backend", "cpu"]);
    let back = folder.run("dequantize", &packed, "d.st", &CPU);
    for list in ["layers.0.offsets", "layers.0.positions"] {
        assert_eq!(u32s(&back, list), u32s(&evicted, list));
    }
    assert_eq!(tensor(&back, "layers.0.k").1, tensor(&evicted, "layers.0.k").1);
    // What dequantize wrote is an evicted file again.
    folder.run("quantize", &back, "again.st", &["--chunk", "16", "--backend", "cpu"]);
    // Codes have no place for heads of different lengths.
    let offsets = u32s(&evicted, "layers.0.offsets");
    if offsets[1] / 16 != (offsets[2] - offsets[1]) / 16 {
        folder.refuses("quantize", &evicted, &["--dump-codes", "--chunk", "16"], &["--dump-codes"]);
    }
}

#[test]
fn the_report_of_compress_adds_up() {
    let folder = Folder::new();
    let (b, h, n, d) = (1, 2, 300, 64);
    let file = pair([b, h, n, d]).f16("layers.0.q", &[b, 6, 4, d], &noise(9, 6 * 4 * d));
    let path = folder.write("x.st", &file.bytes());
    let out = folder.path("p.st");
    let out = out.to_str().expect("plain");
    let report = json("compress", &path, &["-o", out, "--keep", "0.5", "--backend", "cpu"]);
    assert_eq!(report["bytes_before"], 2 * 2 * h * n * d);
    let after = report["bytes_after"].as_object().expect("an object");
    let sum: u64 =
        after.iter().filter(|(k, _)| *k != "total").filter_map(|(_, v)| v.as_u64()).sum();
    assert_eq!(after["total"], sum);
    // 150 rows a head: 4 sinks, two chunks of 64, 18 rows raw.
    assert_eq!(after["codes"], h * 128 * d * (3 + 2) / 8);
    // Of keys and values, and the keys' own.
    assert_eq!(after["scales"], 2 * h * 2 * (64 + 8) + h * d * 2);
    assert_eq!(after["means"], 2 * h * 2 * (d / 2 + 4));
    assert_eq!(after["raw"], 2 * h * 22 * d * 2);
    assert_eq!(after["positions"], h * 150 * 4);
    let layer = &report["layers"][0];
    assert_eq!(layer["kept"], serde_json::json!([150, 150]));
    assert_eq!(layer["assigned_avg_bits"], 2.7109375);
    let bits = report["bits_per_element"].as_f64().expect("a number");
    assert!((bits - 8.0 * sum as f64 / (2 * h * 150 * d) as f64).abs() < 1e-9);
    for part in ["k", "v", "outputs", "outputs_evicted_only"] {
        let error = report[part]["relative_rms"].as_f64().expect("a number");
        assert!(error > 0.0 && error < 1.5, "{part}: {error}");
    }
    assert_eq!(report["output_bytes"].as_u64(), std::fs::metadata(out).ok().map(|file| file.len()));
    let text = wgkv(["compress", path.to_str().expect("plain"), "-o", out, "--backend", "cpu"]);
    for word in ["layer", "output error", "bytes before", "bytes after", "codes", "bits per"] {
        assert!(text.stdout.contains(word), "{word}: {}", text.stdout);
    }
    assert!(!text.stdout.contains('\u{1b}') && !text.stderr.contains('\u{1b}'));
}

#[test]
fn keeping_all_packs_the_whole_cache() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 100, 32]).bytes());
    let all = folder.run("compress", &path, "c.st", &["--keep", "1.0", "--backend", "cpu"]);
    let packed = folder.run("quantize", &path, "p.st", &CPU);
    assert_eq!(std::fs::read(all).expect("there"), std::fs::read(packed).expect("there"));
}

#[test]
fn attention_reads_every_kind_of_cache() {
    let folder = Folder::new();
    let (h, n, d) = (2, 200, 32);
    let cache = folder.write("kv.st", &pair([1, h, n, d]).bytes());
    let q = File::new().f32("layers.0.q", &[1, 4, 3, d], &noise(7, 4 * 3 * d));
    let q = folder.write("q.st", &q.bytes());
    let evicted = folder.run("evict", &cache, "e.st", &["--keep", "1", "--backend", "cpu"]);
    let packed = folder.run("quantize", &cache, "p.st", &CPU);
    let restored =
        folder.run("dequantize", &packed, "d.st", &["--dtype", "f32", "--backend", "cpu"]);
    let attend = |cache: &std::path::Path, name: &str| {
        let cache = cache.to_str().expect("plain");
        let args = [cache, "--causal", "--backend", "cpu"];
        let out = folder.run("attend", &q, name, &args);
        assert_eq!(tensor(&out, "layers.0.out").1, [1, 4, 3, d]);
        f32s(&out, "layers.0.out")
    };
    let dense = attend(&cache, "o1.st");
    assert_eq!(dense, attend(&evicted, "o2.st"), "all rows kept");
    let close = |a: &[f32], b: &[f32], limit: f32| {
        let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= limit, "{worst}");
    };
    let small = attend(&packed, "o3.st");
    close(&small, &attend(&restored, "o4.st"), 1e-4);
    close(&small, &dense, 0.1);
    assert_ne!(small, dense);
}

#[test]
fn attention_that_does_not_fit_is_named() {
    let folder = Folder::new();
    let cache = folder.write("kv.st", &pair([1, 2, 10, 32]).bytes());
    let cache = cache.to_str().expect("plain");
    let refuse = |shape: [usize; 4], args: &[&str], words: &[&str]| {
        let q = File::new().f16("layers.0.q", &shape, &vec![0.5; shape.iter().product()]);
        let q = folder.write("q.st", &q.bytes());
        let line: Vec<&str> = [&[cache, "--backend", "cpu"], args].concat();
        folder.refuses("attend", &q, &line, words);
    };
    refuse([1, 3, 1, 32], &[], &["layers.0.q", "3 query heads", "2 KV heads"]);
    refuse([1, 1, 1, 32], &[], &["layers.0.q", "1 query heads"]);
    refuse([1, 0, 1, 32], &[], &["layers.0.q", "H is 0"]);
    refuse([1, 2, 0, 32], &[], &["layers.0.q", "N is 0"]);
    refuse([2, 2, 1, 32], &[], &["layers.0.q", "2 sequences"]);
    refuse([1, 2, 1, 64], &[], &["layers.0.q", "64", "32"]);
    refuse([1, 2, 11, 32], &["--causal"], &["layers.0.q", "11", "10"]);
    let q = File::new().f16("layers.1.q", &[1, 2, 1, 32], &[0.5; 64]);
    let q = folder.write("q.st", &q.bytes());
    folder.refuses("attend", &q, &[cache], &["layers.1"]);
}

#[test]
fn mlx_prompt_caches_are_read() {
    let folder = Folder::new();
    let shape = [1, 2, 40, 32];
    let count = shape.iter().product();
    let mlx = File::new()
        .bf16("0.0", &shape, &noise(1, count))
        .bf16("0.1", &shape, &noise(2, count))
        .meta(serde_json::json!({"0.0": "", "1.model": "m", "2.0": "KVCache"}));
    let ours = File::new().bf16("layers.0.k", &shape, &noise(1, count)).bf16(
        "layers.0.v",
        &shape,
        &noise(2, count),
    );
    let (mlx, ours) = (folder.write("m.st", &mlx.bytes()), folder.write("o.st", &ours.bytes()));
    let run = wgkv(["inspect".as_ref(), mlx.as_os_str()]);
    assert!(run.stdout.contains("mlx-lm"), "{}", run.stdout);
    for verb in ["evict", "quantize"] {
        let outputs = [&mlx, &ours]
            .map(|input| std::fs::read(folder.run(verb, input, "x.st", &CPU)).expect("there"));
        assert_eq!(outputs[0], outputs[1], "{verb}");
    }
}

/// `tests/data/mlx` comes from mlx-lm itself: 0.32 (`_032`) writes all of the memory that it had and
/// says how much of it counts.
#[test]
fn prompt_caches_of_every_mlx_lm_are_read_alike() {
    let folder = Folder::new();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlx");
    let path = |name: &str| data.join(format!("{name}.safetensors"));
    for name in ["f16", "bf16", "layers"] {
        for verb in ["evict", "quantize"] {
            let outputs = ["031", "032"].map(|mark| {
                let input = path(&format!("{name}_{mark}"));
                std::fs::read(folder.run(verb, &input, "x.st", &CPU)).expect("there")
            });
            assert_eq!(outputs[0], outputs[1], "{verb} {name}");
        }
    }
    let run = wgkv(["inspect".as_ref(), path("f16_032").as_os_str()]);
    assert!(run.stdout.contains("an mlx-lm prompt cache"), "{}", run.stdout);
    assert!(run.stdout.contains("layer 2: KVCache of 11 tokens"), "{}", run.stdout);
    for mark in ["031", "032"] {
        let input = path(&format!("rotating_{mark}"));
        folder.refuses("evict", &input, &[], &["0.0", "RotatingKVCache"]);
        let run = wgkv(["inspect".as_ref(), path(&format!("quantized_{mark}")).as_os_str()]);
        assert!(run.stdout.contains("layer 0: QuantizedKVCache"), "{}", run.stdout);
    }
    folder.refuses("evict", &path("empty_032"), &[], &["0."]);
}

#[test]
fn inspect_knows_saved_sequences() {
    let folder = Folder::new();
    let path = folder.write("s.st", &crate::support::saved_sequences());
    let object = json("inspect", &path, &[]);
    assert_eq!(object["kind"], "sequences of a paged cache");
    assert_eq!(object["metadata"]["version"], "1");
    folder.refuses("evict", &path, &[], &["sequences of a paged cache"]);
}

#[test]
fn inspect_lists_tensors_and_bits() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 300, 64]).bytes());
    let object = json("inspect", &path, &[]);
    assert_eq!(object["tensors"].as_array().map(Vec::len), Some(2));
    assert_eq!(object["tensors"][0]["shape"], serde_json::json!([1, 2, 300, 64]));
    let packed = folder.run("quantize", &path, "p.st", &CPU);
    let bits = json("inspect", &packed, &[])["bits_per_element"].as_f64().expect("a number");
    assert!(bits > 2.6 && bits < 6.0, "{bits}");
}

#[test]
fn non_finite_elements_are_counted_aloud_and_do_no_harm() {
    let folder = Folder::new();
    let shape = [1, 1, 60, 32];
    let clean = noise(1, 60 * 32);
    let mut values = clean.clone();
    values[40 * 32 + 5] = f32::NAN;
    values[41 * 32 + 6] = f32::INFINITY;
    let write = |name: &str, k: &[f32]| {
        let file = File::new().f32("layers.0.k", &shape, k).f32("layers.0.v", &shape, &clean);
        folder.write(name, &file.bytes())
    };
    let (bad, good) = (write("bad.st", &values), write("good.st", &clean));
    let out = folder.path("e.st");
    let run = wgkv([
        "evict".as_ref(),
        bad.as_os_str(),
        "-o".as_ref(),
        out.as_os_str(),
        "--budget".as_ref(),
        "58".as_ref(),
    ]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("layers.0.k: 2 elements are NaN or infinite"), "{}", run.stderr);
    let kept = u32s(&out, "layers.0.positions");
    assert!(!kept.contains(&40) && !kept.contains(&41), "rows that are not numbers go first");
    let args =
        ["--chunk", "32", "--sinks", "0", "--recent", "0", "--dump-codes", "--backend", "cpu"];
    let bad = folder.run("quantize", &bad, "b.st", &args);
    let good = folder.run("quantize", &good, "g.st", &args);
    for part in ["idx", "signs", "s1", "s2", "o"] {
        let name = format!("layers.0.v.{part}");
        assert_eq!(tensor(&bad, &name), tensor(&good, &name), "values have no part in it");
    }
}

#[cfg(unix)]
#[test]
fn files_are_made_with_the_users_umask_and_replace_what_a_link_points_to() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 1, 8, 16]).bytes());
    let plain = folder.write("plain", b"");
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    let out = folder.run("quantize", &path, "out.st", &CPU);
    assert_eq!(mode(&out), mode(&plain));
    std::os::unix::fs::symlink(&out, folder.path("link.st")).expect("a link");
    std::fs::write(&out, b"old").expect("written");
    folder.run("quantize", &path, "link.st", &CPU);
    assert!(std::fs::symlink_metadata(folder.path("link.st")).expect("there").is_symlink());
    assert!(std::fs::metadata(&out).expect("there").len() > 3);
    assert_eq!(folder.names(), ["link.st", "out.st", "plain", "x.st"]);
}

#[test]
fn a_closed_pipe_is_no_crash() {
    use std::process::{Command, Stdio};
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 1, 8, 16]).bytes());
    let mut child = Command::new(env!("CARGO_BIN_EXE_wgkv"))
        .arg("inspect")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("it ends");
    assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"));
    assert_eq!(out.status.code(), Some(0));
}
