//! Faults that others have had, each as one small test.

use half::bf16;

use crate::support::{File, Folder, f32s, noise, pair, tensor, tensors, u32s};

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
    let file = File::new()
        .f16("layers.0.k", &shape, &k)
        .f16("layers.0.v", &shape, &v)
        .bf16("layers.1.k", &shape, &k)
        .bf16("layers.1.v", &shape, &v)
        .f32("layers.2.k", &shape, &k)
        .f32("layers.2.v", &shape, &v)
        .bf16("layers.3.k", &shape, &k)
        .f16("layers.3.v", &shape, &v);
    let input = folder.write("x.st", &file.bytes());
    for backend in BACKENDS {
        for (verb, args) in [
            ("score", vec![]),
            ("evict", vec!["--keep", "0.3"]),
            ("quantize", vec!["--dump-codes"]),
            ("quantize", vec![]),
        ] {
            let args = [args, vec!["--backend", backend]].concat();
            let out = folder.run(verb, &input, "out.st", &args);
            let names = tensors(&out);
            let first: Vec<_> =
                names.iter().filter_map(|name| name.strip_prefix("layers.0.")).collect();
            assert!(!first.is_empty());
            for part in first {
                let want = tensor(&out, &format!("layers.0.{part}"));
                for layer in 1..4 {
                    let name = format!("layers.{layer}.{part}");
                    assert!(tensor(&out, &name) == want, "{verb} {backend}: {name}");
                }
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
    let (rows, n) = (6, 200);
    let dims = [(192, 128), (64, 256), (256, 64)];
    let file = dims.iter().enumerate().fold(File::new(), |file, (layer, &(dk, dv))| {
        let name = |tensor: &str| format!("layers.{layer}.{tensor}");
        file.f16(&name("k"), &[2, 3, n, dk], &noise(1, rows * n * dk))
            .f16(&name("v"), &[2, 3, n, dv], &noise(2, rows * n * dv))
            .f16(&name("q"), &[2, 6, 2, dk], &noise(3, 24 * dk))
    });
    let path = folder.write("x.st", &file.bytes());
    let input = path.to_str().expect("a plain path");
    let outputs = BACKENDS.map(|backend| {
        let args = ["--heads", "adaptive", "--budget", "100", "--backend", backend];
        let evicted = folder.run("evict", &path, "e.st", &args);
        let bits = ["--k-bits", "2", "--v-bits", "1", "--backend", backend];
        let packed = folder.run("quantize", &path, "p.st", &bits);
        let back = folder.run("dequantize", &packed, "d.st", &["--backend", backend]);
        let cache = packed.to_str().expect("a plain path");
        let out = folder.run("attend", &path, "o.st", &[cache, "--backend", backend]);
        let report = crate::support::wgkv([
            "compress",
            input,
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
        for (layer, &(dk, dv)) in dims.iter().enumerate() {
            let shape = |file, name: &str| tensor(file, &format!("layers.{layer}.{name}")).1;
            assert_eq!(shape(&evicted, "k"), [600, dk]);
            assert_eq!(shape(&evicted, "v"), [600, dv]);
            assert_eq!(shape(&back, "k"), [2, 3, n, dk]);
            assert_eq!(shape(&back, "v"), [2, 3, n, dv]);
            assert_eq!(shape(&out, "out"), [2, 6, 2, dv]);
            // 4 sinks and 2 chunks of 64 leave 68 more raw rows.
            let after = &report["layers"][layer]["bytes_after"];
            assert_eq!(after["codes"], rows * 128 * (dk * 2 + dv) / 8);
            assert_eq!(after["means"], rows * 2 * 2 * (dk + dv));
            assert_eq!(after["raw"], rows * 72 * 2 * (dk + dv));
        }
        (0..3).flat_map(|layer| f32s(&out, &format!("layers.{layer}.out"))).collect::<Vec<f32>>()
    });
    let differences = outputs[0].iter().zip(&outputs[1]).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
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

/// cubecl PR 423, burn 3011, llama.cpp PR 23750: more rows or tokens than one dimension of a
/// dispatch takes.
#[test]
fn many_tiny_rows_are_all_done() {
    let folder = Folder::new();
    let d = 8;
    // A software GPU takes minutes for so many rows; it gets as many tokens.
    for (b, h, n, backends) in [(8193, 8, 5, &["cpu"][..]), (1, 1, 65_537, &BACKENDS)] {
        let (rows, count) = (b * h, b * h * n * d);
        let mut k = vec![0.0f32; count];
        for token in k.chunks_exact_mut(d) {
            token[0] = 1.0;
        }
        // The only odd key is the last of the last row.
        k[count - d] = -1.0;
        let v = noise(3, count);
        let file = File::new()
            .f16("layers.0.k", &[b, h, n, d], &k)
            .f16("layers.0.v", &[b, h, n, d], &v)
            .f16("layers.0.q", &[b, h, 1, d], &vec![0.0; rows * d]);
        let path = folder.write("x.st", &file.bytes());
        for backend in backends {
            let args = ["--budget", "2", "--sinks", "0", "--backend", backend];
            let evicted = folder.run("evict", &path, "e.st", &args);
            let positions = u32s(&evicted, "layers.0.positions");
            assert_eq!(positions.len(), 2 * rows);
            let others = positions[..2 * rows - 2].chunks_exact(2);
            assert!(others.into_iter().all(|row| row == [0, 1]), "{backend}");
            assert_eq!(positions[2 * rows - 1] as usize, n - 1, "{backend}");
            let out = folder.run("attend", &path, "o.st", &["--backend", backend]);
            let out = f32s(&out, "layers.0.out");
            for row in [0, rows / 2, rows.saturating_sub(9), rows - 1] {
                for c in 0..d {
                    let half = |i: usize| f64::from(half::f16::from_f32(v[i]).to_f32());
                    let mean = (0..n).map(|t| half((row * n + t) * d + c)).sum::<f64>() / n as f64;
                    let got = f64::from(out[row * d + c]);
                    assert!((got - mean).abs() < 1e-5, "{backend} row {row}: {got} {mean}");
                }
            }
        }
    }
}

/// wgpu 10305, 2361, vllm 50427: offsets past what one binding holds.
#[test]
fn a_row_past_the_usual_binding_limit_is_whole_or_refused() {
    let folder = Folder::new();
    // 256 bytes more than the 128 MiB that the baseline binds.
    let (n, d) = (524_289, 128);
    let mut key = [0u8; 256];
    key[1] = 0x3c;
    let mut keys = key.repeat(n);
    let last = keys.len() - 255;
    keys[last] = 0xbc;
    let file = File::new().tensor("layers.0.k", "F16", &[1, 1, n, d], &keys).tensor(
        "layers.0.v",
        "F16",
        &[1, 1, n, 8],
        &vec![0; 16 * n],
    );
    let path = folder.write("x.st", &file.bytes());
    let args = ["--budget", "8", "--sinks", "0", "--backend"];
    let out = folder.run("evict", &path, "e.st", &[&args[..], &["cpu"]].concat());
    let positions = u32s(&out, "layers.0.positions");
    assert_eq!(positions.len(), 8);
    assert_eq!(positions[7] as usize, n - 1);
    let out = folder.path("g.st");
    let run = crate::support::wgkv([
        "evict",
        path.to_str().expect("a plain path"),
        "-o",
        out.to_str().expect("a plain path"),
        "--budget",
        "8",
        "--sinks",
        "0",
    ]);
    if run.code == 0 {
        assert_eq!(u32s(&out, "layers.0.positions"), positions);
    } else {
        let words = ["layers.0.k", "134217984", "max_storage_buffer_binding_size"];
        crate::support::check_refusal(&run, 2, &words, "evict");
        assert!(!out.exists());
    }
}

/// kvpress 265, PR 277, mlx-vlm 1900, wgpu 6779: tiny caches and fractions that round to nothing.
#[test]
fn tiny_caches_keep_something() {
    let folder = Folder::new();
    let file = (1..=3usize).fold(File::new(), |file, n| {
        let shape = [1, 2, n, 16];
        file.f16(&format!("layers.{n}.k"), &shape, &noise(1, 32 * n)).f16(
            &format!("layers.{n}.v"),
            &shape,
            &noise(2, 32 * n),
        )
    });
    let path = folder.write("x.st", &file.bytes());
    for (args, kept, backends) in [
        (vec!["--keep", "0.1", "--sinks", "0"], [1, 1, 1], &BACKENDS[..]),
        (vec!["--keep", "0.5", "--sinks", "0"], [1, 1, 2], &["cpu"]),
        (vec!["--keep", "1.0", "--sinks", "0"], [1, 2, 3], &["cpu"]),
        (vec!["--keep", "0.1"], [1, 2, 3], &["cpu"]),
        (vec!["--budget", "0", "--sinks", "0"], [0, 0, 0], &BACKENDS),
        (vec!["--budget", "0"], [1, 2, 3], &["cpu"]),
        (vec!["--budget", "9", "--heads", "adaptive"], [1, 2, 3], &BACKENDS),
    ] {
        let mut outputs = Vec::new();
        for backend in backends {
            let args = [args.clone(), vec!["--backend", backend]].concat();
            let out = folder.run("evict", &path, "e.st", &args);
            for (n, kept) in (1..=3).zip(kept) {
                let offsets = u32s(&out, &format!("layers.{n}.offsets"));
                assert_eq!(offsets, [0, kept, 2 * kept], "{n} {args:?}");
            }
            outputs.push(bytes_of(&out));
        }
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{args:?}");
    }
    for (args, packed, backends) in [
        (vec!["--sinks", "0", "--recent", "0", "--chunk", "2"], [0, 1, 1], &BACKENDS[..]),
        (vec!["--sinks", "1", "--recent", "0", "--chunk", "2"], [0, 0, 1], &["cpu"]),
        (vec!["--sinks", "0", "--recent", "2", "--chunk", "2"], [0, 0, 0], &["cpu"]),
        (vec![], [0, 0, 0], &BACKENDS),
    ] {
        let mut outputs = Vec::new();
        for backend in backends {
            let args = [args.clone(), vec!["--backend", backend]].concat();
            let out = folder.run("quantize", &path, "p.st", &args);
            for (n, packed) in (1..=3).zip(packed) {
                let offsets = u32s(&out, &format!("layers.{n}.pages_offsets"));
                assert_eq!(offsets, [0, packed, 2 * packed], "{n} {args:?}");
            }
            let back = folder.run("dequantize", &out, "d.st", &["--backend", backend]);
            outputs.push(bytes_of(&back));
            folder.run("compress", &path, "c.st", &args);
        }
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{args:?}");
    }
}

/// cubecl PR 83, PR 814, burn PR 5181: layers of one submit that share a parameter.
#[test]
fn layers_of_one_file_do_not_touch_each_other() {
    let folder = Folder::new();
    let shapes = [[1, 2, 64, 64], [1, 2, 65, 128], [1, 2, 300, 80]];
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
            let again = folder.run(verb, &all, "again.st", &args);
            assert!(bytes_of(&again) == first, "{verb} {backend} again");
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

/// Heads of 8 and of 80 channels under key scales, without their rotary embedding: on a software device this
/// takes as long as its compiler needs for the shader, and comes to an end.
#[test]
fn odd_widths_under_key_scales_and_without_rotation_pack_alike_everywhere() {
    let folder = Folder::new();
    for (dim, verb) in [(80, "quantize"), (8, "compress")] {
        let dense = folder.write("x.st", &pair([1, 2, 150, dim]).bytes());
        let list: Vec<f64> =
            (0..dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / dim as f64)).collect();
        let list = folder.write("f.json", serde_json::to_string(&list).expect("JSON").as_bytes());
        let list = list.to_str().expect("a name");
        let options = ["--key-scale", "on", "--rope-frequencies", list];
        let [host, device] = BACKENDS.map(|backend| {
            let keep = if verb == "compress" { &["--keep", "1"][..] } else { &[] };
            let args = [&options[..], keep, &["--backend", backend]].concat();
            let packed = folder.run(verb, &dense, "p.st", &args);
            f32s(&folder.run("dequantize", &packed, "d.st", &["--backend", backend]), "layers.0.k")
        });
        let square = |x: f32| f64::from(x * x);
        let error: f64 = host.iter().zip(&device).map(|(a, b)| square(a - b)).sum();
        let size: f64 = host.iter().map(|x| square(*x)).sum();
        // Where a scale lies between two codes, rounding decides.
        assert!(host.len() == device.len() && error < 1e-3 * size, "{dim}: {error} of {size}");
    }
}
