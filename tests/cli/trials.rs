//! Faults that others have had, each as one small test.

use half::bf16;

use crate::support::{File, Folder, f32s, noise, pair, tensor, u32s};

const BACKENDS: [&str; 2] = ["cpu", "auto"];

/// The tensors of a layer, whatever the file calls the others.
fn bytes_of(path: &std::path::Path) -> Vec<u8> {
    std::fs::read(path).expect("the file is there")
}

/// vllm-project/vllm PR 54338, jjang-ai/vmlx PR 17: bf16 bits read as f16.
#[test]
fn the_same_values_give_the_same_output_whatever_their_type() {
    let folder = Folder::new();
    let shape = [1, 2, 200, 64];
    let count = shape.iter().product();
    let values = |seed| -> Vec<f32> {
        noise(seed, count).iter().map(|v| (v * 128.0).round() / 64.0).collect()
    };
    let (k, v) = (values(7), values(8));
    let files = [
        File::new().f16("layers.0.k", &shape, &k).f16("layers.0.v", &shape, &v),
        File::new().bf16("layers.0.k", &shape, &k).bf16("layers.0.v", &shape, &v),
        File::new().f32("layers.0.k", &shape, &k).f32("layers.0.v", &shape, &v),
        File::new().bf16("layers.0.k", &shape, &k).f16("layers.0.v", &shape, &v),
    ];
    let inputs: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(i, file)| folder.write(&format!("{i}.st"), &file.bytes()))
        .collect();
    for backend in BACKENDS {
        for (verb, args) in [
            ("score", vec![]),
            ("evict", vec!["--keep", "0.3"]),
            ("quantize", vec!["--dump-codes"]),
            ("quantize", vec![]),
        ] {
            let args = [args, vec!["--backend", backend]].concat();
            let outputs: Vec<Vec<u8>> = inputs
                .iter()
                .map(|input| bytes_of(&folder.run(verb, input, "out.st", &args)))
                .collect();
            for (i, output) in outputs.iter().enumerate() {
                assert!(*output == outputs[0], "{verb} {backend}: file {i} differs");
            }
        }
    }
    let one = bf16::from_bits(0x3e25);
    let file = File::new().bf16("layers.0.k", &[1, 1, 1, 8], &[one.to_f32(); 8]).bf16(
        "layers.0.v",
        &[1, 1, 1, 8],
        &[one.to_f32(); 8],
    );
    let path = folder.write("one.st", &file.bytes());
    let out = folder.run("evict", &path, "out.st", &["--backend", "cpu"]);
    assert!((f32s(&out, "layers.0.k")[0] - 0.1611).abs() < 1e-4);
}

/// ik_llama.cpp PR 1881, PR 400, mlx-lm PR 1558: keys and values of different width.
#[test]
fn keys_and_values_may_differ_in_width() {
    let folder = Folder::new();
    for (dk, dv) in [(192, 128), (64, 256), (256, 64)] {
        let (rows, n) = (6, 200);
        let file = File::new()
            .f16("layers.0.k", &[2, 3, n, dk], &noise(1, rows * n * dk))
            .f16("layers.0.v", &[2, 3, n, dv], &noise(2, rows * n * dv))
            .f16("layers.0.q", &[2, 6, 2, dk], &noise(3, 24 * dk));
        let path = folder.write("x.st", &file.bytes());
        let mut outputs = Vec::new();
        for backend in BACKENDS {
            let args = ["--heads", "adaptive", "--budget", "100", "--backend", backend];
            let evicted = folder.run("evict", &path, "e.st", &args);
            assert_eq!(tensor(&evicted, "layers.0.k").1, [600, dk]);
            assert_eq!(tensor(&evicted, "layers.0.v").1, [600, dv]);
            let bits = ["--k-bits", "2", "--v-bits", "1", "--backend", backend];
            let packed = folder.run("quantize", &path, "p.st", &bits);
            let back = folder.run("dequantize", &packed, "d.st", &["--backend", backend]);
            assert_eq!(tensor(&back, "layers.0.k").1, [2, 3, n, dk]);
            assert_eq!(tensor(&back, "layers.0.v").1, [2, 3, n, dv]);
            let cache = packed.to_str().expect("plain");
            let out = folder.run("attend", &path, "o.st", &[cache, "--backend", backend]);
            assert_eq!(tensor(&out, "layers.0.out").1, [2, 6, 2, dv]);
            outputs.push(f32s(&out, "layers.0.out"));
            let report = crate::support::wgkv([
                "compress",
                path.to_str().expect("plain"),
                "-o",
                cache,
                "--keep",
                "1",
                "--k-bits",
                "2",
                "--v-bits",
                "1",
                "--backend",
                backend,
                "--json",
            ]);
            assert_eq!(report.code, 0, "{}", report.stderr);
            let report: serde_json::Value =
                serde_json::from_str(&report.stdout).expect("one JSON object");
            // 4 sinks and 2 chunks of 64 leave 68 raw rows.
            let codes = rows * 128 * (dk * 2 + dv) / 8;
            assert_eq!(report["bytes_after"]["codes"], codes);
            assert_eq!(report["bytes_after"]["means"], rows * 2 * 2 * (dk + dv));
            assert_eq!(report["bytes_after"]["raw"], rows * 72 * 2 * (dk + dv));
        }
        let worst =
            outputs[0].iter().zip(&outputs[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{dk}/{dv}: {worst}");
    }
    let file = File::new().f16("layers.0.k", &[1, 1, 2, 576], &[0.5; 1152]).f16(
        "layers.0.v",
        &[1, 1, 2, 512],
        &[0.5; 1024],
    );
    let path = folder.write("mla.st", &file.bytes());
    for verb in ["evict", "quantize", "compress"] {
        folder.refuses(verb, &path, &[], &["layers.0.k", "576"]);
    }
}

/// cubecl PR 423, burn 3011, llama.cpp PR 23750: more workgroups than one dimension takes.
#[test]
fn many_tiny_rows_are_all_done() {
    let folder = Folder::new();
    let (b, h, n, d) = (8193, 8, 5, 8);
    let count = b * h * n * d;
    let mut k = vec![0.0f32; count];
    for token in k.chunks_exact_mut(d) {
        token[0] = 1.0;
    }
    // The only odd key is the last of the last row.
    k[count - d] = -1.0;
    let file = File::new()
        .f16("layers.0.k", &[b, h, n, d], &k)
        .f16("layers.0.v", &[b, h, n, d], &noise(3, count))
        .f16("layers.0.q", &[b, h, 1, d], &vec![0.0; b * h * d]);
    let path = folder.write("x.st", &file.bytes());
    for backend in BACKENDS {
        let args = ["--budget", "2", "--sinks", "0", "--backend", backend];
        let evicted = folder.run("evict", &path, "e.st", &args);
        let positions = u32s(&evicted, "layers.0.positions");
        assert_eq!(positions.len(), 2 * b * h);
        assert!(positions[..2 * b * h - 2].chunks_exact(2).all(|row| row == [0, 1]), "{backend}");
        assert_eq!(positions[2 * b * h - 1], 4, "{backend}");
        let out = folder.run("attend", &path, "o.st", &["--backend", backend]);
        let out = f32s(&out, "layers.0.out");
        let v = noise(3, count);
        for row in [0, 65_534, 65_535, 65_536, b * h - 1] {
            for c in 0..d {
                let half = |i: usize| half::f16::from_f32(v[i]).to_f32();
                let mean = (0..n).map(|t| half((row * n + t) * d + c)).sum::<f32>() / n as f32;
                assert!((out[row * d + c] - mean).abs() < 1e-5, "{backend} row {row}");
            }
        }
    }
}

/// kvpress 265, PR 277, mlx-vlm 1900, wgpu 6779: tiny caches and fractions that round to nothing.
#[test]
fn tiny_caches_keep_something() {
    let folder = Folder::new();
    for n in 1..=3usize {
        let path = folder.write("x.st", &pair([1, 2, n, 16]).bytes());
        for (args, kept) in [
            (vec!["--keep", "0.1", "--sinks", "0"], 1),
            (
                vec!["--keep", "0.5", "--sinks", "0"],
                (n as f64 / 2.0).round_ties_even().max(1.0) as usize,
            ),
            (vec!["--keep", "1.0", "--sinks", "0"], n),
            (vec!["--keep", "0.1"], n.min(4)),
            (vec!["--budget", "0", "--sinks", "0"], 0),
            (vec!["--budget", "0"], n.min(4)),
            (vec!["--budget", "9"], n),
        ] {
            let outputs = BACKENDS.map(|backend| {
                let args = [args.clone(), vec!["--backend", backend]].concat();
                bytes_of(&folder.run("evict", &path, "e.st", &args))
            });
            assert!(outputs[0] == outputs[1], "{n} {args:?}");
            let out = folder.run("evict", &path, "e.st", &args);
            assert_eq!(u32s(&out, "layers.0.offsets")[2] as usize, 2 * kept, "{n} {args:?}");
        }
        for (args, packed) in [
            (vec!["--sinks", "0", "--recent", "0", "--chunk", "2"], n / 2),
            (vec!["--sinks", "1", "--recent", "0", "--chunk", "2"], (n - 1) / 2),
            (vec!["--sinks", "0", "--recent", "2", "--chunk", "2"], 0),
            (vec![], 0),
        ] {
            let outputs = BACKENDS.map(|backend| {
                let args = [args.clone(), vec!["--backend", backend]].concat();
                let out = folder.run("quantize", &path, "p.st", &args);
                assert_eq!(
                    u32s(&out, "layers.0.pages_offsets")[1] as usize,
                    packed,
                    "{n} {args:?}"
                );
                let args = ["--backend", backend];
                bytes_of(&folder.run("dequantize", &out, "d.st", &args))
            });
            assert!(outputs[0] == outputs[1], "{n} {args:?}");
            folder.run("compress", &path, "c.st", &args);
        }
    }
}

/// cubecl PR 83, PR 814, burn PR 5181: layers of one submit that share a parameter.
#[test]
fn layers_of_one_file_do_not_touch_each_other() {
    let folder = Folder::new();
    let shapes = [[1, 2, 64, 64], [1, 2, 65, 128], [1, 2, 1025, 80]];
    let add = |file: File, layer: usize, name: usize| {
        let shape = shapes[layer];
        let count = shape.iter().product();
        let seed = 10 * layer as u32;
        file.f16(&format!("layers.{name}.k"), &shape, &noise(seed + 1, count))
            .f16(&format!("layers.{name}.v"), &shape, &noise(seed + 2, count))
            .f16(&format!("layers.{name}.q"), &[1, 4, 2, shape[3]], &noise(seed + 3, 8 * shape[3]))
    };
    let all = (0..3).fold(File::new(), |file, layer| add(file, layer, layer));
    let all = folder.write("all.st", &all.bytes());
    let singles: Vec<_> =
        (0..3).map(|l| folder.write(&format!("{l}.st"), &add(File::new(), l, l).bytes())).collect();
    for backend in BACKENDS {
        for (verb, parts) in [
            ("score", ["score"].as_slice()),
            ("compress", &["k.pages", "v.pages", "k.raw", "v.raw", "positions", "offsets"]),
            ("attend", &["out"]),
        ] {
            let args = ["--backend", backend];
            let together = folder.run(verb, &all, "together.st", &args);
            let first = bytes_of(&together);
            for repeat in 0..5 {
                let again = folder.run(verb, &all, "again.st", &args);
                assert!(bytes_of(&again) == first, "{verb} {backend} repeat {repeat}");
            }
            for (layer, single) in singles.iter().enumerate() {
                let alone = folder.run(verb, single, "alone.st", &args);
                for part in parts {
                    let name = format!("layers.{layer}.{part}");
                    assert!(
                        tensor(&together, &name) == tensor(&alone, &name),
                        "{verb} {backend} {name}"
                    );
                }
            }
        }
    }
}
