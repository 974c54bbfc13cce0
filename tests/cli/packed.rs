//! Packed and evicted files that were tampered with.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{File, Folder, pair, tensor, u32s};

/// Takes a file that the program wrote apart, to be changed and written again, without its checksum.
fn open(path: &Path) -> File {
    let mut file = open_whole(path);
    unseal(&mut file);
    file
}

/// Makes a packed file one of before there was a checksum.
fn unseal(file: &mut File) {
    let metadata = file.header["__metadata__"].as_object_mut().expect("an object");
    if metadata.remove("checksum").is_some() {
        metadata["version"] = json!("1");
    }
}

fn open_whole(path: &Path) -> File {
    let bytes = std::fs::read(path).expect("the file is there");
    let file = SafeTensors::deserialize(&bytes).expect("the file is whole");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("the file is whole");
    let mut out = File::new();
    let mut names = file.names();
    names.sort();
    for name in names {
        let view = file.tensor(name).expect("it is there");
        out = out.tensor(name, &view.dtype().to_string(), view.shape(), view.data());
    }
    out.meta(json!(header.metadata()))
}

/// The same file with one tensor of u32 replaced.
fn with_u32(file: &File, name: &str, values: &[u32]) -> File {
    let mut out = File::new();
    let mut done = false;
    for (key, entry) in &file.header {
        if key == "__metadata__" {
            continue;
        }
        let at = |i: usize| entry["data_offsets"][i].as_u64().expect("a number") as usize;
        if key == name {
            out = out.u32(name, values);
            done = true;
            continue;
        }
        let shape: Vec<usize> =
            serde_json::from_value(entry["shape"].clone()).expect("a list of numbers");
        let dtype = entry["dtype"].as_str().expect("a name");
        out = out.tensor(key, dtype, &shape, &file.data[at(0)..at(1)]);
    }
    if !done {
        out = out.u32(name, values);
    }
    out.meta(file.header["__metadata__"].clone())
}

/// The same file without a tensor.
fn without(file: &File, name: &str) -> File {
    let mut out = File::new();
    for (key, entry) in file.header.iter().filter(|(key, _)| *key != name && *key != "__metadata__")
    {
        let at = |i: usize| entry["data_offsets"][i].as_u64().expect("a number") as usize;
        let shape: Vec<usize> =
            serde_json::from_value(entry["shape"].clone()).expect("a list of numbers");
        let dtype = entry["dtype"].as_str().expect("a name");
        out = out.tensor(key, dtype, &shape, &file.data[at(0)..at(1)]);
    }
    out.meta(file.header["__metadata__"].clone())
}

/// The same file with one number of a layer's metadata replaced.
fn with_note(file: &File, field: &str, value: Value) -> File {
    let mut file = file.clone();
    let text = file.header["__metadata__"]["layers.0"].as_str().expect("text").to_string();
    let mut note: Value = serde_json::from_str(&text).expect("JSON");
    note[field] = value;
    file.header["__metadata__"]["layers.0"] = json!(note.to_string());
    file
}

/// What only the checksum tells: parts that are gone together with what speaks of them, a bit.
#[test]
fn packed_files_that_were_changed_are_refused() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 150, 32]).bytes());
    let args = ["--target-bits", "2.75", "--backend", "cpu"];
    let packed = open_whole(&folder.run("compress", &dense, "p.st", &args));
    let run = |file: &File, words: &[&str]| {
        let path = folder.write("other.st", &file.bytes());
        if words.is_empty() {
            folder.run("dequantize", &path, "d.st", &["--backend", "cpu"]);
        } else {
            folder.refuses("dequantize", &path, &["--backend", "cpu"], words);
        }
    };
    // Written again by another writer, tensors in another order.
    run(&packed, &[]);
    let damaged = ["other.st", "changed", "checksum"];
    let mut gone = without(&packed, "layers.0.k.scale");
    let text = gone.header["__metadata__"]["layers.0"].as_str().expect("text").to_string();
    let mut note: Value = serde_json::from_str(&text).expect("JSON");
    note.as_object_mut().expect("an object").remove("key_scale").expect("it has scales");
    gone.header["__metadata__"]["layers.0"] = json!(note.to_string());
    run(&gone, &damaged);
    // Before there was a checksum there was nothing that tells.
    unseal(&mut gone);
    run(&gone, &[]);

    let mut other = packed.clone();
    let begin = other.header["layers.0.v.pages"]["data_offsets"][0].as_u64().expect("a number");
    other.data[begin as usize + 9] ^= 1;
    run(&other, &damaged);
    run(&with_note(&packed, "recent", json!(17)), &damaged);
    for told in ["", "0", "00000000000000000000000000000000"] {
        let mut other = packed.clone();
        other.header["__metadata__"]["checksum"] = json!(told);
        run(&other, &damaged);
    }
}

#[test]
fn a_bit_of_the_word_checksum_makes_no_file_of_an_older_kind() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 1, 100, 32]).bytes());
    let packed = folder.run("quantize", &dense, "p.st", &["--backend", "cpu"]);
    let whole = std::fs::read(packed).expect("a file");
    for (key, words) in
        [("\"checksum\"", ["bad.st", "checksum"]), ("\"version\"", ["bad.st", "no version"])]
    {
        let key = key.as_bytes();
        let at = whole.windows(key.len()).position(|part| part == key).expect("it is there");
        for place in at + 1..at + key.len() - 1 {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            let path = folder.write("bad.st", &bytes);
            folder.refuses("dequantize", &path, &["--backend", "cpu"], &words);
        }
    }
    let mut older = open_whole(&folder.path("p.st"));
    older.header["__metadata__"]["version"] = json!("1");
    let path = folder.write("bad.st", &older.bytes());
    // The checksum counts the version.
    folder.refuses("dequantize", &path, &["--backend", "cpu"], &["bad.st", "damaged"]);
}

#[test]
fn packed_files_that_lie_are_refused() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 150, 32]).bytes());
    let args = ["--profile", "compat", "--chunk", "16", "--keep", "0.5", "--backend", "cpu"];
    let packed = open(&folder.run("compress", &dense, "p.st", &args));
    let refuse = |file: File, words: &[&str]| {
        let path = folder.write("bad.st", &file.bytes());
        folder.refuses("dequantize", &path, &["--backend", "cpu"], words);
    };
    let path = folder.write("same.st", &packed.bytes());
    folder.run("dequantize", &path, "d.st", &["--backend", "cpu"]);

    let mut other = packed.clone();
    other.header["__metadata__"]["version"] = json!("3");
    refuse(other, &["version 3"]);
    let mut other = packed.clone();
    other.header["__metadata__"]["profile"] = json!("other");
    refuse(other, &["profile", "compat"]);
    // Pages of one profile are not those of another.
    let mut other = packed.clone();
    other.header["__metadata__"]["profile"] = json!("tuned");
    refuse(other, &["codebook_plain is missing"]);
    let args = ["--profile", "tuned", "--bits", "2", "--key-scale", "off", "--backend", "cpu"];
    let mut other = open(&folder.run("compress", &dense, "tuned.st", &args));
    other.header["__metadata__"]["profile"] = json!("compat");
    refuse(other, &["k.pages", "shape"]);
    let mut other = packed.clone();
    other.header["__metadata__"]["layers.0"] = json!("{");
    refuse(other, &["layers.0", "metadata"]);
    let mut other = packed.clone();
    other.header.remove("__metadata__");
    refuse(other, &["no version"]);

    for (field, value) in [
        ("batch", json!(2)),
        ("batch", json!(0)),
        ("heads", json!(u64::MAX)),
        ("tokens", json!(3)),
        ("tokens", json!(1u64 << 40)),
        ("k_dim", json!(64)),
        ("v_dim", json!(60)),
        ("k_bits", json!(1)),
        ("v_bits", json!(3)),
        ("chunk", json!(0)),
        ("chunk", json!(32)),
        ("chunk", json!(u64::MAX)),
        ("sinks", json!(u64::MAX)),
        ("sinks", json!(70)),
        ("sinks", json!(-1)),
        ("recent", json!("x")),
        ("unknown", json!(1)),
    ] {
        refuse(with_note(&packed, field, value), &["layers.0"]);
    }
    for (name, values) in [
        ("layers.0.offsets", vec![]),
        ("layers.0.offsets", vec![0]),
        ("layers.0.offsets", vec![0, 75]),
        ("layers.0.offsets", vec![0, 151, 150]),
        ("layers.0.offsets", vec![1, 75, 150]),
        ("layers.0.offsets", vec![0, 75, u32::MAX]),
        ("layers.0.offsets", vec![0, 10, 150]),
        ("layers.0.pages_offsets", vec![0, 6, 6]),
        ("layers.0.pages_offsets", vec![0, 3, 7]),
        ("layers.0.pages_offsets", vec![0, 0, u32::MAX]),
        ("layers.0.positions", vec![0; 150]),
        ("layers.0.positions", (1..151).collect()),
        ("layers.0.positions", vec![]),
        ("layers.0.k.pages", vec![0; 8]),
        ("layers.0.k.raw", vec![0; 8]),
        ("codebook_signed", vec![0; 2048]),
    ] {
        refuse(with_u32(&packed, name, &values), &["bad.st"]);
    }
    // Whatever the pages hold, there is nothing in them that could lead astray.
    let mut noise = packed.clone();
    let entry = noise.header["layers.0.k.pages"]["data_offsets"].clone();
    let at = |i: usize| entry[i].as_u64().expect("a number") as usize;
    for (i, byte) in noise.data[at(0)..at(1)].iter_mut().enumerate() {
        *byte = (i * 37 + 11) as u8 | 0x80;
    }
    let path = folder.write("noise.st", &noise.bytes());
    folder.run("dequantize", &path, "d.st", &["--backend", "cpu"]);
}

#[test]
fn evicted_files_that_lie_are_refused() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 50, 32]).bytes());
    let evicted =
        open(&folder.run("evict", &dense, "e.st", &["--budget", "20", "--backend", "cpu"]));
    let refuse = |file: File, words: &[&str]| {
        let path = folder.write("bad.st", &file.bytes());
        folder.refuses("quantize", &path, &["--backend", "cpu"], words);
    };
    for (name, values) in [
        ("layers.0.offsets", vec![]),
        ("layers.0.offsets", vec![0]),
        ("layers.0.offsets", vec![0, 41, 40]),
        ("layers.0.offsets", vec![0, 20]),
        ("layers.0.offsets", vec![0, 20, 39]),
        ("layers.0.positions", vec![0; 40]),
        ("layers.0.positions", vec![0; 39]),
        ("layers.0.positions", (0..20).chain(40..60).collect()),
    ] {
        refuse(with_u32(&evicted, name, &values), &["layers.0"]);
    }
    for (field, value) in [
        ("tokens", json!(10)),
        ("tokens", json!(1u64 << 33)),
        ("batch", json!(3)),
        ("heads", json!(u64::MAX)),
    ] {
        refuse(with_note(&evicted, field, value), &["layers.0"]);
    }
    // Without metadata the tensors alone say enough.
    let mut bare = evicted.clone();
    bare.header.remove("__metadata__");
    let path = folder.write("bare.st", &bare.bytes());
    folder.run("quantize", &path, "p.st", &["--backend", "cpu"]);
}

#[test]
fn tuned_files_carry_their_profile_and_books() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 300, 64]).bytes());
    let error = |args: &[&str]| {
        let cpu = ["--backend", "cpu"];
        let packed = folder.run("quantize", &dense, "p.st", &[args, &cpu].concat());
        let back = folder.run("dequantize", &packed, "d.st", &cpu);
        let [before, after] = [&dense, &back].map(|path| {
            let bytes = std::fs::read(path).expect("a file");
            let file = SafeTensors::deserialize(&bytes).expect("a whole file");
            let view = file.tensor("layers.0.k").expect("keys");
            let halves: Vec<half::f16> = bytemuck::pod_collect_to_vec(view.data());
            halves
        });
        let square =
            |f: &dyn Fn(usize) -> f64| -> f64 { (0..before.len()).map(|i| f(i).powi(2)).sum() };
        let difference = square(&|i| before[i].to_f64() - after[i].to_f64());
        (open(&packed), (difference / square(&|i| before[i].to_f64())).sqrt())
    };
    let (two, compat) = error(&["--bits", "2"]);
    assert_eq!(two.header["__metadata__"]["profile"], "compat", "as scripts expect it");
    let (tuned, three) = error(&[]);
    for same in [&["--profile", "tuned"][..], &["--target-bits", "2.8"]] {
        assert!(error(same).0.data == tuned.data, "{same:?}");
    }
    let (_, four) = error(&["--profile", "tuned", "--bits", "4"]);
    println!("compat {compat:.4}, tuned 3 bits {three:.4}, 4 bits {four:.4}");
    assert!(three < 0.7 * compat && four < 0.7 * three, "{compat} {three} {four}");
    assert_eq!(tuned.header["__metadata__"]["profile"], "tuned");
    let note = tuned.header["__metadata__"]["layers.0"].as_str().expect("text");
    let note: Value = serde_json::from_str(note).expect("JSON");
    assert_eq!((&note["k_bits"], &note["v_bits"]), (&json!(3), &json!(2)));
    assert_eq!(tuned.header["codebook_plain"]["shape"], json!([3712]));
    let scaled = tuned.clone();
    let (plain, without) = error(&["--key-scale", "off"]);
    println!("without key scales {without:.4}");
    assert!(three < 1.1 * without, "{three} {without}");
    let scale = &scaled.header["layers.0.k.scale"];
    assert_eq!((&scale["dtype"], &scale["shape"]), (&json!("F16"), &json!([2, 64])));
    for bare in [&plain, &two] {
        assert!(!bare.header.contains_key("layers.0.k.scale"));
    }
    let (under, _) = error(&["--bits", "2", "--key-scale", "on"]);
    assert!(under.header.contains_key("layers.0.k.scale"));
    // Factors are from 2^-10 to 2^10.
    let at = scale["data_offsets"][0].as_u64().expect("a number") as usize;
    for factor in [half::f16::ZERO, half::f16::NAN, half::f16::from_f32(-1.0)] {
        let mut other = scaled.clone();
        other.data[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        let path = folder.write("bad.st", &other.bytes());
        let words = ["layers.0.k.scale", "key scale", "2^-10"];
        folder.refuses("dequantize", &path, &["--backend", "cpu"], &words);
    }
    // A page is never read under another scale than it was packed under, nor under none.
    for (told, words) in [
        (with_note(&scaled, "key_scale", json!(false)), ["layers.0.k.scale", "metadata"]),
        (with_note(&plain, "key_scale", json!(true)), ["k.scale", "missing"]),
    ] {
        let path = folder.write("bad.st", &told.bytes());
        folder.refuses("dequantize", &path, &["--backend", "cpu"], &words);
    }
    let args = ["--dump-codes", "--key-scale", "on", "--rope-theta", "10000", "--backend", "cpu"];
    let dump = open(&folder.run("quantize", &dense, "codes.st", &args));
    assert_eq!(dump.header["layers.0.k.scale"]["shape"], json!([1, 2, 64]));
    assert_eq!(dump.header["layers.0.k.rope"]["shape"], json!([32]));
    let mut without = tuned.clone();
    without.header["__metadata__"]["profile"] = json!("compat");
    let path = folder.write("bad.st", &without.bytes());
    folder.refuses("dequantize", &path, &["--backend", "cpu"], &["bits", "3"]);
}

#[test]
fn packed_files_carry_the_seed_of_their_signs() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 200, 64]).bytes());
    let cpu = ["--backend", "cpu"];
    let halves = |path: &Path| -> Vec<f64> {
        let (_, _, bytes) = tensor(path, "layers.0.k");
        let halves: Vec<half::f16> = bytemuck::pod_collect_to_vec(&bytes);
        halves.iter().map(|v| v.to_f64()).collect()
    };
    let before = halves(&dense);
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let error = |packed: &Path| {
        let after = halves(&folder.run("dequantize", packed, "d.st", &cpu));
        let difference = sum(&mut before.iter().zip(&after).map(|(a, b)| a - b));
        (difference / sum(&mut before.iter().copied())).sqrt()
    };
    let note = |file: &File| -> Value {
        let text = file.header["__metadata__"]["layers.0"].as_str().expect("text");
        serde_json::from_str(text).expect("JSON")
    };
    for profile in ["tuned", "compat"] {
        let plain =
            folder.run("quantize", &dense, "p.st", &[&cpu[..], &["--profile", profile]].concat());
        assert_eq!(note(&open(&plain)).get("signs"), None);
        let without = error(&plain);
        for verb in ["quantize", "compress"] {
            for seed in ["0", "7", "4294967295"] {
                let args = [&cpu[..], &["--profile", profile, "--signs", seed]].concat();
                let all = if verb == "compress" { &["--keep", "1"][..] } else { &[] };
                let packed = folder.run(verb, &dense, "s.st", &[&args[..], all].concat());
                let file = open(&packed);
                assert_eq!(note(&file)["signs"].to_string(), seed);
                assert_eq!(file.header["__metadata__"]["profile"], profile);
                let with = error(&packed);
                assert!(with < 1.3 * without, "{verb} {profile} {seed}: {with} {without}");
                // The seed in the file is the one that it is read by.
                for other in [json!(8), Value::Null] {
                    let other = with_note(&file, "signs", other);
                    let wrong = error(&folder.write("w.st", &other.bytes()));
                    assert!(wrong > 1.5 * with, "{verb} {profile} {seed}: {wrong} {with}");
                }
            }
        }
        assert_ne!(
            u32s(&plain, "layers.0.k.pages"),
            u32s(&folder.path("s.st"), "layers.0.k.pages")
        );
        assert_ne!(
            u32s(&plain, "layers.0.v.pages"),
            u32s(&folder.path("s.st"), "layers.0.v.pages")
        );
    }
    let file = open(&folder.path("s.st"));
    for seed in [json!(-1), json!(4294967296u64), json!("7")] {
        let path = folder.write("bad.st", &with_note(&file, "signs", seed).bytes());
        folder.refuses("dequantize", &path, &cpu, &["layers.0", "metadata"]);
    }
    let dump =
        folder.run("quantize", &dense, "c.st", &["--dump-codes", "--signs", "9", cpu[0], cpu[1]]);
    assert_eq!(open(&dump).header["__metadata__"]["layers.0.signs"], "9");
}

#[test]
fn keys_packed_without_their_embedding_come_back_with_it() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 300, 64]).bytes());
    let list: Vec<f64> = (0..16).map(|i| 1e4f64.powf(-f64::from(i) / 16.0)).collect();
    let list = folder.write("inv.json", json!(list).to_string().as_bytes());
    let list = list.to_str().expect("a name");
    let halves = |path: &Path| -> Vec<f64> {
        let (_, _, bytes) = tensor(path, "layers.0.k");
        let halves: Vec<half::f16> = bytemuck::pod_collect_to_vec(&bytes);
        halves.iter().map(|v| v.to_f64()).collect()
    };
    let before = halves(&dense);
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let mut outputs = Vec::new();
    for backend in ["cpu", "auto"] {
        for rope in [["--rope-theta", "10000"], ["--rope-frequencies", list]] {
            let args = ["--profile", "paper", "--rope-pairing", "interleaved"];
            let args = [&args[..], &rope, &["--backend", backend]].concat();
            let packed = folder.run("quantize", &dense, "p.st", &args);
            let back = folder.run("dequantize", &packed, "d.st", &["--backend", backend]);
            let after = halves(&back);
            let difference = sum(&mut before.iter().zip(&after).map(|(a, b)| a - b));
            let error = (difference / sum(&mut before.iter().copied())).sqrt();
            println!("{backend} {rope:?}: {error:.4}");
            assert!(error < 0.4, "{error}");
            outputs.push(open(&packed));
        }
    }
    let file = &outputs[1];
    assert_eq!(file.header["layers.0.k.rope"]["shape"], json!([16]));
    assert_eq!(outputs[0].header["layers.0.k.rope"]["shape"], json!([32]));
    assert_eq!(file.header["__metadata__"]["profile"], "paper");
    let cpu = ["--backend", "cpu"];
    let refuse = |file: File, words: &[&str]| {
        folder.refuses("dequantize", &folder.write("bad.st", &file.bytes()), &cpu, words);
    };
    refuse(with_note(file, "rope", json!("other")), &["rope", "halves"]);
    refuse(with_note(file, "rope", Value::Null), &["k.rope"]);
    let mut without = file.clone();
    without.header.remove("layers.0.k.rope");
    refuse(without, &["layers.0"]);
    // Which embedding, or that there is none, must be said.
    let paper = ["--profile", "paper", "--backend", "cpu"];
    folder.refuses("quantize", &dense, &paper, &["paper", "--rope-theta", "--no-rope"]);
    folder.run("quantize", &dense, "n.st", &[&paper[..], &["--no-rope"]].concat());
    let theta = ["--rope-theta", "0.5", "--backend", "cpu"];
    folder.refuses("quantize", &dense, &theta, &["--rope-theta", "0.5"]);
    let bad = folder.write("bad.json", b"[1, 2, \"x\"]");
    let bad = ["--rope-frequencies", bad.to_str().expect("a name"), "--backend", "cpu"];
    folder.refuses("quantize", &dense, &bad, &["bad.json", "JSON"]);
    let many = folder.write("many.json", json!(vec![1.0; 33]).to_string().as_bytes());
    let many = ["--rope-frequencies", many.to_str().expect("a name"), "--backend", "cpu"];
    folder.refuses("quantize", &dense, &many, &["rope frequencies", "33"]);
}

#[test]
fn a_tuned_file_without_its_book_is_refused() {
    let folder = Folder::new();
    let dense = folder.write("x.st", &pair([1, 2, 150, 32]).bytes());
    let packed = open(&folder.run("compress", &dense, "p.st", &["--backend", "cpu"]));
    let path = folder.write("other.st", &without(&packed, "codebook_plain").bytes());
    folder.refuses("dequantize", &path, &["--backend", "cpu"], &["codebook_plain is missing"]);
}
