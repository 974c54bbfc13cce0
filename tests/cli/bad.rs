//! Bad tensors and bad arguments.

use crate::support::{File, Folder, check_refusal, noise, pair, wgkv};

fn ones(shape: &[usize]) -> Vec<f32> {
    vec![1.0; shape.iter().product()]
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = Folder::new();
    let refuse = |file: File, verbs: &[&str], words: &[&str]| {
        let path = folder.write("x.st", &file.bytes());
        for verb in verbs {
            folder.refuses(verb, &path, &["--backend", "cpu"], words);
        }
    };
    let both = ["evict", "quantize", "compress"];
    let good = [1, 2, 8, 64];
    let data = ones(&good);

    refuse(File::new().f16("layers.0.k", &good, &data), &both, &["layers.0.v", "missing"]);
    refuse(File::new().f16("layers.0.v", &good, &data), &both, &["layers.0.k", "missing"]);
    refuse(File::new().f16("layers.0.v", &good, &data), &["score"], &["layers.0.k", "missing"]);
    refuse(File::new().f16("other", &good, &data), &both, &["without layers"]);

    for shape in [vec![2, 8, 64], vec![1, 1, 2, 8, 64], vec![1024], vec![1, 2, 512]] {
        let file = File::new().f16("layers.0.k", &shape, &data).f16("layers.0.v", &good, &data);
        refuse(file, &["evict", "quantize", "score"], &["layers.0.k", "4 dimensions"]);
    }
    let scalar = File::new().f16("layers.0.k", &[], &[1.0]).f16("layers.0.v", &[], &[1.0]);
    refuse(scalar, &both, &["layers.0.k", "4 dimensions"]);

    for (axis, name) in ["B", "H", "N", "D"].iter().enumerate() {
        let mut shape = good;
        shape[axis] = 0;
        let file = File::new().f16("layers.0.k", &shape, &[]).f16("layers.0.v", &shape, &[]);
        refuse(file, &["evict", "quantize", "compress", "score"], &["layers.0.k", name, "is 0"]);
    }

    for (v, words) in [
        ([1, 3, 8, 64], ["layers.0.v", "[1, 3, 8, 64]"]),
        ([1, 2, 9, 64], ["layers.0.v", "[1, 2, 9, 64]"]),
        ([2, 2, 8, 64], ["layers.0.v", "[2, 2, 8, 64]"]),
    ] {
        let file = File::new().f16("layers.0.k", &good, &data).f16("layers.0.v", &v, &ones(&v));
        refuse(file, &both, &words);
    }

    for dim in [60, 63, 576, 72, 4] {
        let shape = [1, 1, 8, dim];
        let named = format!("is {dim},");
        let file = File::new().f16("layers.0.k", &shape, &ones(&shape)).f16(
            "layers.0.v",
            &shape,
            &ones(&shape),
        );
        refuse(file, &both, &["layers.0.k", &named]);
    }
    let v = [1, 2, 8, 60];
    let file = File::new().f16("layers.0.k", &good, &data).f16("layers.0.v", &v, &ones(&v));
    refuse(file, &both, &["layers.0.v", "is 60,"]);

    let ints = [0u8; 1024 * 8];
    for (dtype, bytes) in [("I64", 8), ("F64", 8), ("I32", 4), ("U8", 1), ("BOOL", 1)] {
        let file = File::new().tensor("layers.0.k", dtype, &good, &ints[..1024 * bytes]).f16(
            "layers.0.v",
            &good,
            &data,
        );
        refuse(file, &both, &["layers.0.k", dtype]);
    }

    let names = pair(good).f16("0.0", &good, &data);
    refuse(names, &both, &["layers.0.k", "0.0", "same thing"]);
    let ring = File::new()
        .f16("0.0", &good, &data)
        .f16("0.1", &good, &data)
        .meta(serde_json::json!({"2.0": "RotatingKVCache"}));
    refuse(ring, &both, &["RotatingKVCache"]);
}

#[test]
fn the_second_layer_being_bad_leaves_nothing_behind() {
    let folder = Folder::new();
    let good = [1, 2, 8, 64];
    let file = pair(good).f16("layers.1.k", &good, &ones(&good));
    let path = folder.write("x.st", &file.bytes());
    folder.refuses("evict", &path, &["--backend", "cpu"], &["layers.1.v", "missing"]);
    folder.refuses("quantize", &path, &["--backend", "cpu"], &["layers.1.v", "missing"]);
    folder.refuses("compress", &path, &["--layers", "0,7"], &["layers.7", "0, 1"]);
    folder.run("quantize", &path, "out.st", &["--backend", "cpu", "--layers", "0"]);
}

#[test]
fn bad_arguments_are_named() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 8, 64]).bytes());
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("evict", &["--keep", "0"], &["--keep", "0"]),
        ("evict", &["--keep", "1.0000001"], &["--keep", "1.0000001"]),
        ("evict", &["--keep", "nan"], &["--keep", "NaN"]),
        ("evict", &["--keep", "-1"], &["--keep", "-1"]),
        ("evict", &["--keep", "inf"], &["--keep", "inf"]),
        ("evict", &["--keep", "x"], &["--keep", "x"]),
        ("evict", &["--budget", "-1"], &["-1"]),
        ("evict", &["--budget", "4294967296"], &["--budget", "4294967296"]),
        ("evict", &["--budget", "4", "--keep", "0.5"], &["--budget", "--keep"]),
        ("evict", &["--window", "0"], &["window", "0"]),
        ("score", &["--window", "0"], &["window", "0"]),
        ("score", &["--beta", "nan"], &["beta", "NaN"]),
        ("score", &["--tau", "inf"], &["tau", "inf"]),
        ("score", &["--kappa=-inf"], &["kappa", "-inf"]),
        ("score", &["--prior", "0.5,0.5"], &["--prior", "3"]),
        ("score", &["--prior", "0,0.5,0.5"], &["prior", "0"]),
        ("score", &["--prior", "-1,0.5,0.5"], &["prior", "-1"]),
        ("score", &["--prior", "nan,1,1"], &["prior", "NaN"]),
        ("score", &["--prior", "a,1,1"], &["--prior", "a"]),
        ("evict", &["--safeguard", "1.5"], &["safeguard", "1.5"]),
        ("evict", &["--safeguard", "nan"], &["safeguard", "NaN"]),
        ("evict", &["--heads", "some"], &["--heads", "some"]),
        ("quantize", &["--bits", "3"], &["--bits", "3"]),
        ("quantize", &["--target-bits", "1"], &["--target-bits", "1", "1.25"]),
        ("quantize", &["--target-bits", "nan"], &["--target-bits", "NaN"]),
        ("quantize", &["--target-bits", "2.75", "--bits", "2"], &["--target-bits", "--bits"]),
        ("compress", &["--target-bits", "2", "--v-bits", "2"], &["--target-bits", "--v-bits"]),
        (
            "quantize",
            &["--target-bits", "2", "--profile", "tuned"],
            &["--target-bits", "--profile"],
        ),
        ("quantize", &["--bits", "0"], &["--bits", "0"]),
        ("quantize", &["--k-bits", "4"], &["--k-bits", "4"]),
        ("quantize", &["--v-bits", "8"], &["--v-bits", "8"]),
        ("quantize", &["--profile", "tuned", "--bits", "5"], &["--bits", "5"]),
        ("quantize", &["--profile", "tuned", "--v-bits", "0"], &["--v-bits", "0"]),
        ("quantize", &["--chunk", "0"], &["chunk", "0"]),
        ("quantize", &["--chunk", "1"], &["chunk", "1"]),
        ("quantize", &["--chunk", "1025"], &["chunk", "1025"]),
        ("quantize", &["--profile", "other"], &["--profile", "other"]),
        ("quantize", &["--profile", "paper"], &["paper"]),
        ("quantize", &["--rope-pairing", "interleaved"], &["--rope-pairing", "--rope-theta"]),
        ("quantize", &["--no-rope", "--rope-pairing", "halves"], &["--rope-pairing"]),
        ("quantize", &["--codebook", "missing.st"], &["missing.st"]),
        ("quantize", &["--layers", "0,x"], &["--layers", "x"]),
        ("quantize", &["--layers", "7"], &["layers.7", "0"]),
        ("quantize", &["--layers", "1-3"], &["--layers", "1-3", "whole number"]),
        ("quantize", &["--sinks", "-1"], &["--sinks", "-1", "0..=4294967295"]),
        ("quantize", &["--recent", "2.5"], &["--recent", "2.5", "whole number"]),
        ("evict", &["--keep", "50%"], &["--keep", "50%", "expected a number"]),
        ("evict", &["--keep", "50"], &["--keep", "50", "fraction"]),
        ("quantize", &["--backend", "cuda"], &["--backend", "cuda"]),
        ("quantize", &["--backend", "cpu", "--adapter", "x"], &["--adapter"]),
        ("quantize", &["--bogus"], &["--bogus"]),
        ("attend", &["--scale", "nan"], &["--scale", "NaN"]),
    ];
    for (verb, args, words) in cases {
        folder.refuses(verb, &path, args, words);
    }
    let cut = folder.path("x.st");
    for (args, words) in [
        (vec!["score", "x.st"], ["--output"].as_slice()),
        (vec!["bogus"], &["bogus"]),
        (vec!["quantize"], &["--output", "INPUT"]),
        (vec!["budgets", "x.st"], &["--total"]),
        (vec!["budgets", "x.st", "--total", "-1"], &["-1"]),
        (vec!["replay", cut.to_str().unwrap_or(""), "-o", "y.st"], &["--ops"]),
    ] {
        let run = wgkv(&args);
        check_refusal(&run, 2, words, &format!("{args:?}"));
    }
}

#[test]
fn bad_codebooks_are_named() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 8, 64]).bytes());
    let unit = |scale: f32| [[scale].as_slice(), &[0.0; 7]].concat().repeat(256);
    let refuse = |signed: (&[usize], &[f32]), words: &[&str]| {
        let book = File::new().f32("codebook_signed", signed.0, signed.1).f32(
            "codebook_magnitude",
            &[256, 8],
            &unit(1.0),
        );
        let book = folder.write("book.st", &book.bytes());
        let book = book.to_str().expect("a plain path");
        folder.refuses("quantize", &path, &["--codebook", book], words);
    };
    refuse((&[256, 8], &unit(2.0)), &["codebook_signed", "norm 2"]);
    refuse((&[256, 8], &unit(f32::NAN)), &["codebook_signed", "NaN"]);
    refuse((&[2048], &unit(1.0)), &["codebook_signed", "2 dimensions"]);
    refuse((&[255, 8], &unit(1.0)[..2040]), &["codebook_signed", "[255, 8]"]);
    let path = path.to_str().expect("a plain path");
    folder.refuses(
        "quantize",
        path.as_ref(),
        &["--codebook", path],
        &["codebook_signed", "missing"],
    );
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_any_work() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 8, 64]).bytes());
    let input = path.to_str().expect("a plain path");
    std::fs::create_dir(folder.path("folder")).expect("a folder");
    let missing = folder.path("no/such/place.st");
    let folder_path = folder.path("folder");
    let (behind, long) = (folder.path("new.st/"), folder.path(&"n".repeat(256)));
    for (out, words) in [
        (missing.to_str().expect("a plain path"), ["place.st", "no such file"]),
        (folder_path.to_str().expect("a plain path"), ["folder", "directory"]),
        ("/dev/null", ["/dev/null", "device"]),
        (behind.to_str().expect("a plain path"), ["new.st", "no file name"]),
        (long.to_str().expect("a plain path"), ["nnn", "name too long"]),
        ("-", ["-", "standard output"]),
    ] {
        if cfg!(unix) {
            let run = wgkv(["quantize", input, "-o", out]);
            check_refusal(&run, 2, &words, out);
        }
    }
}

#[test]
fn an_output_that_is_the_input_is_refused() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 8, 64]).bytes());
    let whole = std::fs::read(&path).expect("it is there");
    let own = folder.path(".").join("x.st");
    for verb in ["score", "evict", "quantize", "compress"] {
        let line = [verb.as_ref(), path.as_os_str(), "-o".as_ref(), own.as_os_str()];
        check_refusal(&wgkv(line), 2, &["x.st", "also the input"], verb);
        assert_eq!(std::fs::read(&path).expect("it is there"), whole, "{verb}");
    }
    #[cfg(unix)]
    {
        let link = folder.path("y.st");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let line = ["evict".as_ref(), path.as_os_str(), "-o".as_ref(), link.as_os_str()];
        check_refusal(&wgkv(line), 2, &["y.st", "also the input"], "a link");
    }
}

#[test]
fn numbers_of_a_sweep_and_files_of_a_case_are_named() {
    let folder = Folder::new();
    let file = folder.write("x.st", b"text");
    let place = file.to_str().expect("a plain path");
    let many = ["8"; 2002].join(",");
    for (args, words) in [
        (vec!["sweep", "--tokens", "0"], ["--tokens is 0", "at least 1"]),
        (vec!["sweep", "--repeats", "0"], ["--repeats is 0", "at least 1"]),
        (vec!["sweep", "--keep", "nan"], ["--keep is NaN", "fraction"]),
        (vec!["sweep", "--bits", "3"], ["--profile compat", "bits is 3"]),
        (vec!["sweep", "--presets", "nan"], ["--presets", "NaN"]),
        (vec!["sweep", "--tokens", "99999999999999"], ["--tokens 99999999999999", "32-bit"]),
        (vec!["sweep", "--group", "18446744073709551615"], ["--group is 1844", "at most 1024"]),
        (vec!["sweep", "--group", "1000000000"], ["--group is 1000000000", "at most 1024"]),
        (
            vec!["sweep", "--group", "1024", "--tokens", "8", "--heads", "65536"],
            ["--group 1024", "32-bit"],
        ),
        (
            vec!["sweep", "--repeats", "18446744073709551615", "--warmup", "1"],
            ["--repeats is 1844", "at most 1000000"],
        ),
        (vec!["sweep", "--warmup", "1000001"], ["--warmup is 1000001", "at most 1000000"]),
        (vec!["sweep", "--tokens", &many], ["14014 combinations", "at most 10000"]),
        (vec!["sweep", "-o", place], ["x.st", "expected a folder"]),
        (vec!["conformance", "--time", "9223372036854775807"], ["--time", "9223372036854775807"]),
        (vec!["conformance", "-o", place], ["x.st", "expected a folder"]),
        (vec!["conformance", "--case", place], ["x.st", "is no case"]),
        (vec!["conformance", "--case", "none.json"], ["none.json", "no such file"]),
    ] {
        check_refusal(&wgkv(&args), 2, &words, &format!("{args:?}"));
    }
}

/// A folder of reports is tried file by file before any work is done.
#[test]
fn reports_that_cannot_be_written_are_refused_before_any_work() {
    let folder = Folder::new();
    let sweep = ["sweep", "--backend", "cpu", "--tokens", "8", "--dim", "8", "--methods", "score"];
    for (verb, name) in [(&sweep[..], "time.svg"), (&["conformance"], "report.json")] {
        let place = folder.path(verb[0]);
        std::fs::create_dir_all(place.join(name)).expect("a folder");
        let out = place.to_str().expect("a plain path");
        let run = wgkv([verb, &["-o", out]].concat());
        check_refusal(&run, 2, &[name, "is a directory"], out);
        assert_eq!(std::fs::read_dir(&place).expect("a folder").count(), 1);
        check_refusal(&wgkv([verb, &["-o", "-"]].concat()), 2, &["standard output"], verb[0]);
    }
    #[cfg(unix)]
    {
        let place = folder.path("pipes");
        std::fs::create_dir(&place).expect("a folder");
        let made = std::process::Command::new("mkfifo").arg(place.join("sweep.jsonl")).status();
        if made.is_ok_and(|status| status.success()) {
            let out = place.to_str().expect("a plain path");
            let run = wgkv([&sweep[..], &["-o", out]].concat());
            check_refusal(&run, 2, &["sweep.jsonl", "is a pipe"], out);
        }
    }
}

#[test]
fn a_refusal_leaves_an_older_output_as_it_was() {
    let folder = Folder::new();
    let good = [1, 2, 8, 64];
    let path = folder.write("x.st", &File::new().f16("layers.0.k", &good, &ones(&good)).bytes());
    let old = folder.write("old.st", b"old content");
    let line = ["evict", path.to_str().expect("a plain path"), "-o", old.to_str().expect("plain")];
    let run = wgkv(line);
    check_refusal(&run, 2, &["layers.0.v"], "evict");
    assert_eq!(std::fs::read(&old).expect("it is there"), b"old content");
    assert_eq!(folder.names(), ["old.st", "x.st"]);
}

#[test]
fn adapters_that_are_not_there_end_with_3() {
    let folder = Folder::new();
    let path = folder.write("x.st", &pair([1, 2, 8, 64]).bytes());
    let out = folder.path("y.st");
    let run = wgkv([
        "score".as_ref(),
        path.as_os_str(),
        "-o".as_ref(),
        out.as_os_str(),
        "--adapter".as_ref(),
        "no such adapter".as_ref(),
    ]);
    check_refusal(&run, 3, &["no such adapter"], "--adapter");
    assert_eq!(folder.names(), ["x.st"]);
    if cfg!(target_os = "linux") {
        for backend in ["metal", "dx12"] {
            check_refusal(&wgkv(["doctor", "--backend", backend]), 3, &[backend], backend);
        }
    }
}

#[test]
fn values_beyond_f16_are_refused_by_name_or_survive() {
    let folder = Folder::new();
    let shape = [1, 1, 40, 64];
    let mut values = noise(5, 40 * 64);
    // Token 2 is a sink, token 10 is packed.
    values[10 * 64 + 3] = 70_000.0;
    let packed_only = File::new().f32("layers.0.k", &shape, &values).f32(
        "layers.0.v",
        &shape,
        &noise(6, 40 * 64),
    );
    let path = folder.write("packed.st", &packed_only.bytes());
    let args = ["--chunk", "16", "--sinks", "4", "--recent", "4", "--backend", "cpu"];
    let packed = folder.run("quantize", &path, "p.st", &args);
    let wide = folder.run("dequantize", &packed, "d.st", &["--dtype", "f32", "--backend", "cpu"]);
    let back = crate::support::f32s(&wide, "layers.0.k");
    assert!((back[10 * 64 + 3] - 70_000.0).abs() < 20_000.0, "{}", back[10 * 64 + 3]);

    values[2 * 64] = -70_000.0;
    let raw = File::new().f32("layers.0.k", &shape, &values).f32(
        "layers.0.v",
        &shape,
        &noise(6, 40 * 64),
    );
    let path = folder.write("raw.st", &raw.bytes());
    folder.refuses("quantize", &path, &args, &["layers.0.k", "-70000", "row 2", "f16"]);
    folder.refuses(
        "evict",
        &path,
        &["--budget", "20", "--backend", "cpu"],
        &["layers.0.k", "-70000", "f16"],
    );

    let brain = File::new().bf16("layers.0.k", &shape, &values).bf16(
        "layers.0.v",
        &shape,
        &noise(6, 40 * 64),
    );
    let path = folder.write("brain.st", &brain.bytes());
    let packed = folder.run("quantize", &path, "b.st", &args);
    let wide = folder.run("dequantize", &packed, "w.st", &["--dtype", "f32", "--backend", "cpu"]);
    let want = half::bf16::from_f32(-70_000.0).to_f32();
    assert_eq!(crate::support::f32s(&wide, "layers.0.k")[2 * 64], want);
    let out = folder.path("n.st");
    let run = wgkv(["dequantize".as_ref(), packed.as_os_str(), "-o".as_ref(), out.as_os_str()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("cut off at 65504"), "{}", run.stderr);
    assert_eq!(crate::support::f32s(&out, "layers.0.k")[2 * 64], -65504.0);
}
