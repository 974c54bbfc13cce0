//! Files that lie, and files that are something else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{File, Folder, check_refusal, pair, raw_file, wgkv};

const SHAPE: [usize; 4] = [1, 2, 64, 64];

/// The base file with its header changed.
fn changed(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Vec<u8> {
    let mut file = pair(SHAPE);
    change(&mut file.header);
    file.bytes()
}

/// Both verbs refuse the file within a second.
fn both_refuse(folder: &Folder, bytes: &[u8], words: &[&str]) {
    let path = folder.write("x.st", bytes);
    for verb in ["inspect", "quantize"] {
        let start = Instant::now();
        folder.refuses(verb, &path, &[], words);
        assert!(start.elapsed() < Duration::from_secs(1), "{verb} took {:?}", start.elapsed());
    }
}

/// Both verbs read the file.
fn both_read(folder: &Folder, bytes: &[u8]) {
    let path = folder.write("x.st", bytes);
    let run = wgkv(["inspect".as_ref(), path.as_os_str()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("layers.0.k"), "{}", run.stdout);
    folder.run("quantize", &path, "out.st", &["--backend", "cpu"]);
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = Folder::new();
    let base = pair(SHAPE);
    let text = Value::Object(base.header.clone()).to_string();
    let refuse = |bytes: &[u8], words: &[&str]| both_refuse(&folder, bytes, words);

    let mut twice = text.trim_end_matches('}').to_string();
    twice.push_str(&format!("}},\"layers.0.k\":{}}}", base.header["layers.0.v"]));
    refuse(&raw_file(twice.as_bytes(), &base.data), &["layers.0.k is named twice"]);

    let nul = [text.as_bytes(), &[0; 8]].concat();
    refuse(&raw_file(&nul, &base.data), &["header"]);
    let bom = [b"\xef\xbb\xbf".as_slice(), text.as_bytes()].concat();
    refuse(&raw_file(&bom, &base.data), &["header"]);

    let k = base.header["layers.0.k"]["data_offsets"].clone();
    let mut alias = base.clone();
    alias.header["layers.0.v"]["data_offsets"] = k;
    alias.data.truncate(alias.data.len() / 2);
    refuse(&alias.bytes(), &["layers.0.v", "layers.0.k", "shares bytes"]);

    let half = base.data.len() / 2;
    let mut hole = base.clone();
    hole.header["layers.0.v"]["data_offsets"] = json!([half + 16, 2 * half + 16]);
    hole.data.splice(half..half, [0xee; 16]);
    refuse(&hole.bytes(), &["16 bytes before layers.0.v"]);

    let mut trailing = base.clone();
    trailing.data.push(0);
    refuse(&trailing.bytes(), &["1 bytes after the last tensor"]);

    refuse(&base.clone().meta(json!({"n": 0})).bytes(), &["__metadata__", "string"]);
    refuse(&base.clone().meta(json!([1])).bytes(), &["__metadata__"]);
    let tensor = base.header["layers.0.k"].clone();
    refuse(&base.clone().meta(tensor).bytes(), &["__metadata__"]);

    for shape in [
        json!([4294967296u64, 4294967296u64, 1, 1]),
        json!([1, 2, 64, (1u64 << 63) + 64]),
        json!([1, 2, 1000, 1000]),
        json!([1, 2, 64, 63]),
    ] {
        refuse(&changed(|h| h["layers.0.k"]["shape"] = shape), &["layers.0.k", "shape"]);
    }
    for shape in [json!([1.5]), json!([-1, 2, 64, 64]), json!("no"), json!([1e30]), json!(null)] {
        refuse(&changed(|h| h["layers.0.k"]["shape"] = shape), &["layers.0.k"]);
    }
    refuse(&changed(|h| h["layers.0.k"]["shape"] = json!(vec![1; 1000])), &["layers.0.k"]);
    refuse(
        &changed(|h| h["layers.0.k"]["data_offsets"] = json!([half, 0])),
        &["layers.0.k", "reversed"],
    );
    refuse(&changed(|h| h["layers.0.k"]["extra"] = json!(1)), &["layers.0.k", "extra"]);
    refuse(
        &changed(|h| {
            h["layers.0.k"]["dtype"] = json!("F8_E4M3");
            h["layers.0.k"]["shape"] = json!([1, 2, 128, 64]);
        }),
        &["layers.0.k", "F8_E4M3"],
    );
    refuse(
        &changed(|h| {
            h["layers.0.k"]["dtype"] = json!("F6_E2M3");
            h["layers.0.k"]["data_offsets"] = json!([1u64 << 63, (1u64 << 63) + 8]);
        }),
        &["layers.0.k", "past the file"],
    );
    refuse(&changed(|h| h["layers.0.k"]["dtype"] = json!("F99")), &["layers.0.k", "F99"]);
    refuse(&changed(|h| h["layers.0.k"]["dtype"] = json!("I16")), &["layers.0.k", "I16"]);

    let deep = [b"{\"a\":".as_slice(), &[b'['; 100_000]].concat();
    refuse(&raw_file(&deep, &[]), &["header"]);
    refuse(&raw_file(b"{\"a\":1}", &[]), &["a"]);
    refuse(&raw_file(b"{} {}", &[]), &["header"]);
    refuse(&raw_file(b"[]", &[]), &["header"]);
    refuse(&raw_file(b"{\"\xff\":1}", &[]), &["header"]);
    for claim in [0x07DF_9D40, 1 << 20, u64::MAX, 1 << 62] {
        refuse(&[&claim.to_le_bytes(), b"{}".as_slice()].concat(), &["header"]);
    }
}

/// What a terminal would obey, and more than a screen of it.
#[test]
fn messages_quote_no_more_of_a_file_than_a_line_holds() {
    let folder = Folder::new();
    let name = format!("\u{1b}[31m\n\u{202e}{}", "x".repeat(100_000));
    let check = |args: &[&str], words: &[&str]| {
        let run = wgkv(args);
        check_refusal(&run, 2, words, &format!("{args:?}"));
        let raw = |c: char| c == '\u{202e}' || c.is_control() && c != '\n';
        assert!(!run.stderr.contains(raw), "{args:?}: {}", run.stderr);
    };
    let mut tensor = pair(SHAPE).header["layers.0.k"].clone();
    tensor[&name] = json!(1);
    let unknown = changed(|h| h["layers.0.k"] = tensor);
    both_refuse(&folder, &unknown, &["u{1b}"]);
    let meta = json!({"format": "wgkv-packed", "version": "1", "layers.0": json!({"batch": name}).to_string()});
    let offsets = File::new().u32("layers.0.offsets", &[0, 1]).u32("layers.0.positions", &[0]);
    let evicted =
        offsets.f16("layers.0.k", &[1, 64], &[1.0; 64]).f16("layers.0.v", &[1, 64], &[1.0; 64]);
    let path = folder.write(
        "e.st",
        &evicted.meta(json!({"layers.0": json!({"batch": name}).to_string()})).bytes(),
    );
    let out = folder.path("out.st");
    let out = out.to_str().expect("a path");
    check(&["quantize", path.to_str().expect("a path"), "-o", out], &["e.st", "u{1b}"]);
    let packed = File::new().u32("layers.0.pages_offsets", &[0]).meta(meta);
    let path = folder.write("p.st", &packed.bytes());
    check(&["dequantize", path.to_str().expect("a path"), "-o", out], &["p.st"]);
    let dense = folder.write("kv.st", &pair(SHAPE).bytes());
    for ops in [json!([{"append": name}]), json!([{&name: 1}]), json!([{"use": name}])] {
        let ops = folder.write("ops.json", ops.to_string().as_bytes());
        let [dense, ops] = [&dense, &ops].map(|path| path.to_str().expect("a path"));
        check(&["replay", dense, "--ops", ops, "-o", out], &["ops.json", "step 0"]);
    }
    let case = json!({"format": "wgkv-case", "stage": &name[..60_000]}).to_string();
    let case = folder.write("case.json", case.as_bytes());
    check(&["conformance", "--case", case.to_str().expect("a path")], &["case.json", "stage"]);
}

#[test]
fn a_layer_that_is_not_there_is_refused_with_a_few_that_are() {
    let folder = Folder::new();
    let mut file = File::new();
    for layer in 0..300 {
        for side in ["k", "v"] {
            file = file.f16(&format!("layers.{layer}.{side}"), &[1, 1, 1, 8], &[1.0; 8]);
        }
    }
    let path = folder.write("x.st", &file.bytes());
    for verb in ["inspect", "evict"] {
        folder.refuses(verb, &path, &["--layers", "999"], &["layers.999", "15, ... (300 in all)"]);
    }
    let heads = folder.write("h.st", &File::new().f32("head.0", &[1], &[1.0]).bytes());
    folder.refuses("inspect", &heads, &["--layers", "0"], &["layers.0", "no layers"]);
}

#[test]
fn unusual_but_legal_headers_are_read() {
    let folder = Folder::new();
    let base = pair(SHAPE);
    let text = Value::Object(base.header.clone()).to_string();
    both_read(&folder, &base.bytes());
    both_read(&folder, &base.clone().meta(json!({})).bytes());
    both_read(&folder, &base.clone().meta(json!(null)).bytes());
    both_read(&folder, &base.clone().meta(json!({"note": "\u{7}\u{202e}"})).bytes());
    let escaped = text.replace("layers.0.k", "layers\\u002e0.k");
    both_read(&folder, &raw_file(escaped.as_bytes(), &base.data));
    both_read(&folder, &raw_file(format!("{text}       ").as_bytes(), &base.data));
    both_read(&folder, &base.clone().tensor("other", "I64", &[0, 7], &[]).bytes());
}

#[test]
fn other_files_are_called_by_their_name() {
    let folder = Folder::new();
    let lfs = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n",
        "0".repeat(64)
    );
    both_refuse(&folder, lfs.as_bytes(), &["Git LFS pointer", "git lfs pull"]);
    both_refuse(&folder, &[b"GGUF\x03\0\0\0".as_slice(), &[0; 64]].concat(), &["GGUF"]);
    both_refuse(&folder, &[b"PK\x03\x04".as_slice(), &[0; 64]].concat(), &["zip"]);
    both_refuse(&folder, &[b"\x93NUMPY\x01\0".as_slice(), &[0; 64]].concat(), &["NumPy"]);
    both_refuse(&folder, b"<!DOCTYPE html><html></html>", &["web page"]);
    both_refuse(&folder, b"{\"layers.0.k\": 1}", &["JSON"]);
    both_refuse(&folder, b"just some words here", &["text"]);
    both_refuse(&folder, b"", &["empty"]);
    both_refuse(&folder, b"\x02", &["1 bytes"]);
    both_refuse(&folder, b"\x02\0\0\0\0\0\0", &["7 bytes"]);
    both_refuse(&folder, b"\x02\0\0\0\0\0\0\0", &["8"]);
    both_refuse(&folder, &File::new().bytes(), &["x.st"]);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("folder")).expect("a folder");
    folder.refuses("inspect", &folder.path("folder"), &[], &["directory"]);
    folder.refuses("inspect", &folder.path("missing.st"), &[], &["missing.st", "no such file"]);
    folder.refuses("inspect", "-".as_ref(), &[], &["standard input"]);
    #[cfg(unix)]
    {
        let fifo = folder.path("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if made.is_ok_and(|status| status.success()) {
            folder.refuses("inspect", &fifo, &[], &["pipe"]);
            folder.refuses("evict", &fifo, &[], &["pipe"]);
        }
        folder.refuses("inspect", "/dev/zero".as_ref(), &[], &["device"]);
    }
}

#[test]
fn files_of_another_kind_are_refused_with_what_would_help() {
    let folder = Folder::new();
    let dense = folder.write("kv.st", &pair(SHAPE).bytes());
    let packed = folder.run("quantize", &dense, "packed.st", &["--backend", "cpu"]);
    let evicted = folder.run("evict", &dense, "evicted.st", &["--backend", "cpu"]);
    let count = SHAPE.iter().product();
    let queries =
        folder.write("q.st", &File::new().f16("layers.0.q", &SHAPE, &noise(count)).bytes());
    folder.refuses("evict", &packed, &[], &["packed cache", "dequantize"]);
    folder.refuses("score", &packed, &[], &["packed cache"]);
    folder.refuses("compress", &packed, &[], &["packed cache"]);
    folder.refuses("quantize", &packed, &[], &["packed cache"]);
    folder.refuses("score", &evicted, &[], &["evicted cache"]);
    folder.refuses("evict", &evicted, &[], &["evicted cache"]);
    folder.refuses("quantize", &queries, &[], &["queries"]);
    folder.refuses("dequantize", &dense, &[], &["dense cache", "packed cache"]);
    folder.refuses("dequantize", &evicted, &[], &["evicted cache"]);
    folder.refuses("budgets", &dense, &["--total", "3"], &["head.<j>"]);
    folder.refuses("attend", &queries, &[], &["queries"]);
}

fn noise(count: usize) -> Vec<f32> {
    crate::support::noise(3, count)
}
