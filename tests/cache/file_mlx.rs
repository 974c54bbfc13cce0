//! Prompt caches of mlx-lm: files that it wrote are read, and ours are made as it makes them.
//!
//! The files of `tests/data/mlx` are made by `tools/make_mlx_cache.py write` with mlx-lm 0.32.2
//! (`_032`) and 0.31.3 (`_031`). The other way round takes mlx-lm: with `WGKV_MLX_OUT=FOLDER`,
//! [`files_for_mlx_lm`] leaves files there for `tools/make_mlx_cache.py check`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::Value;
use wgkv::Error;
use wgkv::files::{Data, MlxLm, PromptCache, PromptLayer};
use wgkv::shape::Dtype;

pub fn file(name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(root.join("tests/data/mlx").join(format!("{name}.safetensors"))).unwrap()
}

/// The rule by which the script fills caches, for `[batch, heads, tokens, channels]`.
fn rule(layer: usize, side: usize, [batch, heads, tokens, channels]: [usize; 4]) -> Vec<f32> {
    let mut elements = Vec::new();
    for b in 0..batch {
        for h in 0..heads {
            for n in 0..tokens {
                for d in 0..channels {
                    let sum = 31 * layer + 17 * side + 7 * b + 5 * h + 3 * n + d;
                    elements.push(((sum % 64) as f32 - 32.0) / 4.0);
                }
            }
        }
    }
    elements
}

fn data(dtype: Dtype, elements: Vec<f32>) -> Data {
    match dtype {
        Dtype::F32 => Data::F32(elements),
        Dtype::F16 => Data::F16(elements.into_iter().map(f16::from_f32).collect()),
        Dtype::Bf16 => Data::Bf16(elements.into_iter().map(bf16::from_f32).collect()),
    }
}

/// A cache that follows the rule.
pub fn cache(dtype: Dtype, layers: usize, shape: [usize; 5]) -> PromptCache {
    let [batch, heads, tokens, head_dim_k, head_dim_v] = shape;
    let side =
        |layer, side, channels| data(dtype, rule(layer, side, [batch, heads, tokens, channels]));
    let layer = |layer| PromptLayer {
        keys: side(layer, 0, head_dim_k),
        values: side(layer, 1, head_dim_v),
    };
    let layers = (0..layers).map(layer).collect();
    let metadata = BTreeMap::new();
    PromptCache { batch, heads, tokens, head_dim_k, head_dim_v, layers, metadata }
}

/// What the script wrote, by name: `f16`, `bf16` and `layers`.
pub fn written_by_mlx_lm(name: &str) -> PromptCache {
    match name {
        "f16" => {
            let notes = [("model", "none"), ("tokenizer_config", "{}"), ("of.which", "nested")];
            let metadata = notes.map(|(key, value)| (key.into(), value.into())).into();
            PromptCache { metadata, ..cache(Dtype::F16, 3, [1, 2, 11, 16, 16]) }
        }
        "bf16" => cache(Dtype::Bf16, 2, [2, 1, 17, 16, 8]),
        _ => cache(Dtype::F16, 11, [1, 1, 2, 8, 8]),
    }
}

const NAMES: [&str; 3] = ["f16", "bf16", "layers"];

fn version(mark: &str) -> MlxLm {
    if mark == "031" { MlxLm::V0_31 } else { MlxLm::V0_32 }
}

#[test]
fn what_mlx_lm_wrote_is_read() {
    for name in NAMES {
        for mark in ["031", "032"] {
            let got = PromptCache::read(&file(&format!("{name}_{mark}"))).unwrap();
            assert_eq!(got, written_by_mlx_lm(name), "{name} {mark}");
        }
    }
}

/// Header of a file.
fn header(bytes: &[u8]) -> Value {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + length]).unwrap()
}

/// What mlx-lm sees of a file once it is loaded: metadata, types and shapes.
fn seen(bytes: &[u8]) -> Value {
    let mut header = header(bytes);
    for (name, entry) in header.as_object_mut().unwrap() {
        if name != "__metadata__" {
            entry.as_object_mut().unwrap().remove("data_offsets");
        }
    }
    header
}

#[test]
fn our_files_are_made_as_mlx_lm_makes_them() {
    for name in NAMES {
        for mark in ["031", "032"] {
            let theirs = file(&format!("{name}_{mark}"));
            let ours = written_by_mlx_lm(name).to_bytes(version(mark)).unwrap();
            let (mut expected, got) = (seen(&theirs), seen(&ours));
            let tokens = written_by_mlx_lm(name).tokens;
            for (name, entry) in expected.as_object_mut().unwrap() {
                // Theirs are as long as the memory was, ours as what is in it.
                if mark == "032" && (name.ends_with(".0") || name.ends_with(".1")) {
                    assert_eq!(entry["shape"][2], 256);
                    entry["shape"][2] = tokens.into();
                }
            }
            assert_eq!(got, expected, "{name} {mark}");
            let ours = safetensors::SafeTensors::deserialize(&ours).unwrap();
            let theirs = safetensors::SafeTensors::deserialize(&theirs).unwrap();
            for (tensor, view) in ours.tensors() {
                let other = theirs.tensor(&tensor).unwrap();
                if mark == "031" || tensor.ends_with(".2") {
                    assert_eq!(view.data(), other.data(), "{name} {mark} {tensor}");
                } else {
                    let row = view.data().len() / view.shape()[..2].iter().product::<usize>();
                    let room = other.data().len() / other.shape()[..2].iter().product::<usize>();
                    let heads = other.data().chunks_exact(room).flat_map(|head| &head[..row]);
                    assert!(view.data().iter().eq(heads), "{name} {mark} {tensor}");
                }
            }
        }
    }
}

#[test]
fn what_is_written_is_read_again() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for version in [MlxLm::V0_31, MlxLm::V0_32] {
            let mut cache = cache(dtype, 12, [2, 3, 5, 8, 24]);
            cache.metadata.insert("note".into(), "\u{e9} \"quoted\"".into());
            let bytes = cache.to_bytes(version).unwrap();
            assert_eq!(PromptCache::read(&bytes).unwrap(), cache);
        }
    }
}

#[test]
fn caches_that_do_not_hold_together_are_not_written() {
    let good = cache(Dtype::F16, 2, [1, 2, 3, 8, 8]);
    let refused = |cache: &PromptCache| cache.to_bytes(MlxLm::default()).unwrap_err();
    let fault = refused(&PromptCache { tokens: 4, ..good.clone() });
    assert!(matches!(fault, Error::Length { argument: "keys", got: 48, expected: 64 }));
    let fault = refused(&PromptCache { layers: vec![], ..good.clone() });
    assert!(matches!(fault, Error::Empty { argument: "layers" }));
    let fault = refused(&PromptCache { tokens: 0, ..good.clone() });
    assert!(matches!(fault, Error::Empty { argument: "tokens" }));
    let fault = refused(&PromptCache { heads: usize::MAX, ..good });
    assert!(matches!(fault, Error::Length { .. }));
}

fn fault(bytes: &[u8]) -> String {
    match PromptCache::read(bytes) {
        Err(Error::File { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn caches_of_other_classes_are_named() {
    for mark in ["031", "032"] {
        for (name, class) in [("rotating", "RotatingKVCache"), ("quantized", "QuantizedKVCache")] {
            let expected = format!("layer 0 is a {class}, only a KVCache is read");
            assert_eq!(fault(&file(&format!("{name}_{mark}"))), expected);
        }
    }
    assert_eq!(fault(&file("empty_032")), "layer 0 holds no tokens");
    let plain = crate::support::golden("nsn_codebooks.safetensors");
    assert_eq!(
        fault(&plain),
        "the file is no prompt cache of mlx-lm: its metadata name no classes"
    );
}

/// A file with another header; its data stay.
fn changed(bytes: &[u8], edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = header(bytes);
    edit(&mut header);
    let text = header.to_string();
    let mut changed = (text.len() as u64).to_le_bytes().to_vec();
    changed.extend_from_slice(text.as_bytes());
    changed.extend_from_slice(&bytes[8 + length..]);
    changed
}

#[test]
fn files_that_do_not_hold_together_are_named() {
    let bytes = cache(Dtype::F16, 2, [1, 2, 12, 8, 8]).to_bytes(MlxLm::V0_32).unwrap();
    let rename = |from: &str, to: &str| {
        changed(&bytes, |header| {
            let entry = header.as_object_mut().unwrap().remove(from).unwrap();
            header[to] = entry;
        })
    };
    assert_eq!(fault(&rename("1.0", "1.x")), "1.0 is missing");
    assert_eq!(fault(&rename("0.2", "0.3")), "0.2 is missing");
    let shape = |name: &str, shape: &[usize]| {
        changed(&bytes, |header| header[name]["shape"] = shape.into())
    };
    assert_eq!(
        fault(&shape("0.0", &[2, 12, 8])),
        "0.0 has the shape [2, 12, 8], expected [B, H, N, D]"
    );
    assert_eq!(
        fault(&shape("1.1", &[1, 1, 24, 8])),
        "1.1 has the shape [1, 1, 12, 8], 1.0 [1, 2, 12, 8]"
    );
    let both = changed(&bytes, |header| {
        for name in ["1.0", "1.1"] {
            header[name]["shape"] = serde_json::json!([2, 1, 12, 8]);
        }
    });
    assert_eq!(
        fault(&both),
        "layer 1 has B, H, N and channels of keys and values [2, 1, 12, 8, 8], layer 0 [1, 2, 12, 8, 8]"
    );
    let typed = changed(&bytes, |header| header["0.1"]["dtype"] = "I16".into());
    assert_eq!(fault(&typed), "0.1 is I16, expected F32, F16 or BF16");
    let class = changed(&bytes, |header| {
        header["__metadata__"].as_object_mut().unwrap().remove("1.1");
    });
    assert_eq!(fault(&class), "1.0 belongs to no layer of a KVCache");
    let told = |count: i32| {
        let mut bytes = bytes.clone();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&count.to_le_bytes());
        bytes
    };
    assert_eq!(fault(&told(0)), "layer 1 holds no tokens");
    assert_eq!(fault(&told(-1)), "1.2 is -1, expected a number of tokens");
    assert_eq!(fault(&told(13)), "1.0 has room for 12 tokens of 13");
    assert_eq!(
        fault(&told(11)),
        "layer 1 has B, H, N and channels of keys and values [1, 2, 11, 8, 8], layer 0 [1, 2, 12, 8, 8]"
    );
    for end in 0..bytes.len() {
        assert!(!fault(&bytes[..end]).is_empty(), "cut at {end}");
    }
}

/// Shapes of one tensor, of a pair and of all, with the bytes that they ask for and without.
#[test]
fn shapes_that_are_none_are_named() {
    let bytes = cache(Dtype::F16, 2, [1, 2, 12, 8, 8]).to_bytes(MlxLm::V0_32).unwrap();
    let shaped = |names: &[&str], shape: &Value| {
        changed(&bytes, |header| {
            names.iter().for_each(|name| header[*name]["shape"] = shape.clone());
        })
    };
    let all = ["0.0", "0.1", "1.0", "1.1"];
    for (shape, words) in [
        (serde_json::json!([]), "does not take the"),
        (serde_json::json!([192]), "expected [B, H, N, D]"),
        (serde_json::json!([1, 1, 2, 12, 8]), "expected [B, H, N, D]"),
        (serde_json::json!([1, 2, 12, 0]), "does not take the"),
        (serde_json::json!([1, 2, 12, 9]), "does not take the"),
        (serde_json::json!([1, 2, 1u64 << 40, 1u64 << 40]), "does not take the"),
        (serde_json::json!([-1, 2, 12, 8]), "not valid"),
        (serde_json::json!([1.5, 2, 12, 8]), "not valid"),
        (serde_json::json!("12"), "not valid"),
        (serde_json::json!([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 96]), "not valid"),
    ] {
        for names in [&all[..1], &all[..2], &all] {
            let fault = fault(&shaped(names, &shape));
            assert!(fault.contains(words), "{shape}: {fault}");
        }
    }
    // Other shapes of as many elements, alike in all layers, are another cache; counted tokens must
    // have room.
    assert_eq!(
        fault(&shaped(&all, &serde_json::json!([12, 2, 1, 8]))),
        "0.0 has room for 1 tokens of 12"
    );
    let turned = PromptCache::read(&shaped(&all, &serde_json::json!([2, 1, 12, 8]))).unwrap();
    assert_eq!((turned.batch, turned.heads, turned.tokens), (2, 1, 12));
    let odd = PromptCache::read(&shaped(&all, &serde_json::json!([1, 1, 24, 8]))).unwrap();
    assert_eq!((odd.heads, odd.tokens), (1, 12), "the rest of the buffer is no token's");
    for count in [0, 2] {
        let fault = fault(&shaped(&["1.2"], &serde_json::json!([count])));
        assert!(fault.starts_with("1.2: ") && fault.contains("does not take the"), "{fault}");
    }
}

/// Files for mlx-lm to read, if somebody asks for them.
#[test]
fn files_for_mlx_lm() {
    let Some(folder) = std::env::var_os("WGKV_MLX_OUT").map(PathBuf::from) else { return };
    for (mark, version) in [("031", MlxLm::V0_31), ("032", MlxLm::V0_32)] {
        for name in NAMES {
            let path = folder.join(format!("{name}_{mark}.safetensors"));
            std::fs::write(path, written_by_mlx_lm(name).to_bytes(version).unwrap()).unwrap();
        }
        let wide = cache(Dtype::F32, 2, [1, 2, 300, 16, 32]);
        let path = folder.join(format!("f32_{mark}.safetensors"));
        std::fs::write(path, wide.to_bytes(version).unwrap()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_files_do_no_harm(
        at in any::<prop::sample::Index>(),
        text in prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "0", "1", "2", "-1", "1e9", "4294967297", "null",
            "KVCache", ".", "\"1.0\":", "\"2.0\":\"\",", "scalar", "none",
        ]),
        remove in 0usize..12,
        recent in any::<bool>(),
    ) {
        let mut bytes = file(if recent { "rotating_032" } else { "rotating_031" });
        let version = if recent { MlxLm::V0_32 } else { MlxLm::V0_31 };
        if at.index(2) == 0 {
            bytes = cache(Dtype::F16, 2, [1, 1, 2, 8, 8]).to_bytes(version).unwrap();
        }
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let at = 8 + at.index(length);
        let end = (at + remove).min(8 + length);
        bytes.splice(at..end, text.bytes());
        let length = (length + text.len() - (end - at)) as u64;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        if let Ok(cache) = PromptCache::read(&bytes) {
            prop_assert_eq!(PromptCache::read(&cache.to_bytes(version).unwrap()).unwrap(), cache);
        }
    }
}
