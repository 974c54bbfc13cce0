//! The traces of the peer's cache, step by step.

use std::sync::Arc;

use half::f16;
use wgkv::cache::CacheConfig;
use wgkv::layout::Bits;
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;

use crate::layer::{Cache, Stream, bits, close};
use crate::support::golden::{Golden, index};

fn numbers(case: &serde_json::Value, name: &str) -> usize {
    case[name].as_u64().unwrap_or_else(|| panic!("{name} in {case}")) as usize
}

fn halves(file: &Golden, name: &str) -> Vec<f16> {
    file.numbers(name).into_iter().map(f16::from_f64).collect()
}

/// Counters exact, rows within the tolerance that the index states but for codes near a tie.
#[test]
fn traces_of_the_peer() {
    let file = Golden::open("nsn_traces.safetensors");
    let books = Golden::open("nsn_codebooks.safetensors");
    let book = |name| books.numbers(name).into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    let codebook =
        Arc::new(Codebook::new(&book("codebook_signed"), &book("codebook_magnitude")).unwrap());
    for case in index()["nsn_traces"].as_array().unwrap() {
        let name = case["trace"].as_str().unwrap();
        let (rows, head_dim) = (numbers(case, "B") * numbers(case, "H"), numbers(case, "D"));
        let rate = Bits::new("bits", numbers(case, "bits") as u32).unwrap();
        let config = CacheConfig {
            profile: wgkv::layout::Profile::Compat,
            key_scale: false,
            rope: None,
            signs: None,
            rows,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            k_bits: rate,
            v_bits: rate,
            chunk: numbers(case, "residual"),
            sinks: 0,
            recent: 0,
            dtype: Dtype::F16,
            codebook: codebook.clone(),
        };
        for mut cache in Cache::both(&config) {
            for (step, want) in case["steps"].as_array().unwrap().iter().enumerate() {
                let n = numbers(want, "n");
                if want["op"] == "append" {
                    let part =
                        ["k", "v"].map(|t| halves(&file, &format!("{name}/step{step}_in_{t}")));
                    cache.append(&Stream::of(rows, [head_dim; 2], n, part), 0, n);
                } else {
                    // The peer drops what there is.
                    cache.trim(n.min(cache.counters().len)).unwrap();
                }
                let (keys, values, got) = cache.show();
                assert_eq!(got.len, numbers(want, "offset"), "{name} step {step}");
                assert_eq!(got.quantized_tokens, numbers(want, "quantized_tokens"));
                for (counter, value) in [
                    ("compressed_key_bytes", got.compressed_key_bytes),
                    ("compressed_value_bytes", got.compressed_value_bytes),
                    ("residual_fp16_bytes", got.residual_fp16_bytes),
                    ("fp16_key_bytes", got.fp16_key_bytes),
                    ("fp16_value_bytes", got.fp16_value_bytes),
                ] {
                    assert_eq!(
                        value,
                        numbers(want, counter) as u64,
                        "{name} step {step} {counter}"
                    );
                }
                assert_eq!(Some(got.assigned_avg_bits), want["assigned_avg_bits"].as_f64());
                if got.len > 0 {
                    for (ours, tensor) in [(keys, "keys"), (values, "values")] {
                        let theirs = halves(&file, &format!("{name}/step{step}_{tensor}"));
                        close(&ours, &bits(&theirs), head_dim);
                    }
                }
            }
        }
    }
}
