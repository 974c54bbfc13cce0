//! What codecs cost: the error of attention's output on a real model's cache, over codecs.

use half::f16;
use wgkv::judge::widen;
use wgkv::layout::Bits;
use wgkv::nsnquant::{KeyScales, MeanDomain, Profile, Scheme, assigned_avg_bits, cpu, key_scale};
use wgkv::shape::Elements;

use crate::schemes::codec_of;

#[path = "../end_to_end/sample.rs"]
mod sample;

use sample::{DIM, HEADS, KV_HEADS, LAYERS, Layer, QUERIES, TOKENS};

const CHUNK: usize = 64;

/// A codec for keys and one for values, and how many tokens stay raw.
#[derive(Clone, Copy)]
struct Entry {
    name: &'static str,
    keys: Scheme,
    values: Scheme,
    scaled: bool,
    sinks: usize,
    recent: usize,
}

/// Rows `[TOKENS, DIM]` of one head, those that are packed restored from their pages.
fn restored(rows: Elements<'_>, scheme: Scheme, entry: &Entry, scaled: bool) -> Vec<f64> {
    let codec = codec_of(scheme, DIM, CHUNK);
    let count = (TOKENS - entry.sinks - entry.recent) / CHUNK;
    let starts: Vec<u32> = (0..count).map(|p| (entry.sinks + p * CHUNK) as u32).collect();
    let first = rows.slice(entry.sinks * DIM..rows.len());
    let scale = key_scale(first, DIM, CHUNK).expect("a scale");
    let zeros = vec![0; count];
    let scales = KeyScales { values: &scale, of_page: &zeros };
    let scales = scaled.then_some(&scales);
    let pages = cpu::encode_scaled(&codec, rows, &starts, scales).expect("pages");
    let packed = cpu::decode_scaled(&codec, &pages, scales).expect("rows");
    let mut out = widen(rows);
    for (out, value) in out[entry.sinks * DIM..].iter_mut().zip(packed) {
        *out = f64::from(value);
    }
    out
}

/// Causal attention of the newest queries of a head: `[QUERIES, DIM]`.
fn attend(queries: &[f16], keys: &[f64], values: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for (number, query) in queries.chunks_exact(DIM).enumerate() {
        let seen = TOKENS - QUERIES + number + 1;
        let dot = |key: &[f64]| key.iter().zip(query).map(|(k, q)| k * q.to_f64()).sum::<f64>();
        let logits: Vec<f64> =
            keys.chunks_exact(DIM).take(seen).map(|key| dot(key) / (DIM as f64).sqrt()).collect();
        let top = logits.iter().fold(f64::MIN, |a, b| a.max(*b));
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..DIM).map(|c| {
            let value = |(t, w): (usize, &f64)| w * values[t * DIM + c];
            weights.iter().enumerate().map(value).sum::<f64>() / total
        }));
    }
    out
}

/// Error of the outputs over all layers and heads, relative to the outputs.
fn error(layers: &[Layer], entry: &Entry) -> f64 {
    let mut sum = 0.0;
    let group = HEADS / KV_HEADS;
    for layer in layers {
        for head in 0..KV_HEADS {
            let rows = head * TOKENS * DIM..(head + 1) * TOKENS * DIM;
            let [keys, values] = layer.tensors().map(|tensor| tensor.data().slice(rows.clone()));
            let exact = (widen(keys), widen(values));
            let packed = (
                restored(keys, entry.keys, entry, entry.scaled),
                restored(values, entry.values, entry, false),
            );
            for query in head * group..(head + 1) * group {
                let queries = &layer.queries[query * QUERIES * DIM..][..QUERIES * DIM];
                let wanted = attend(queries, &exact.0, &exact.1);
                let got = attend(queries, &packed.0, &packed.1);
                let square = |f: &dyn Fn(usize) -> f64| -> f64 {
                    (0..wanted.len()).map(|i| f(i).powi(2)).sum()
                };
                sum += square(&|i| got[i] - wanted[i]) / square(&|i| wanted[i]);
            }
        }
    }
    (sum / (layers.len() * HEADS) as f64).sqrt()
}

fn entries() -> Vec<Entry> {
    let compat = |bits| Profile::Compat.scheme(bits);
    let tuned = |bits| Profile::Tuned.scheme(bits);
    let keys = |bits| Profile::Tuned.key_scheme(bits);
    let plain_mean = |mut scheme: Scheme| {
        scheme.mean = MeanDomain::Plain;
        scheme
    };
    let signed = |mut scheme: Scheme| {
        scheme.signs = Some(1);
        scheme
    };
    let entry =
        |name, keys, values| Entry { name, keys, values, scaled: false, sinks: 4, recent: 16 };
    let scaled = |name, keys, values| Entry { scaled: true, ..entry(name, keys, values) };
    use Bits::{Four, One, Three, Two};
    vec![
        Entry { sinks: 0, recent: 0, ..entry("compat 2, nothing raw", compat(Two), compat(Two)) },
        entry("compat 1", compat(One), compat(One)),
        entry("compat 2", compat(Two), compat(Two)),
        entry("tuned 1", keys(One), tuned(One)),
        scaled("tuned 1, scaled", keys(One), tuned(One)),
        entry("tuned K2 V1", keys(Two), tuned(One)),
        entry("tuned 2", keys(Two), tuned(Two)),
        scaled("tuned 2, scaled", keys(Two), tuned(Two)),
        entry("tuned K3 V2", keys(Three), tuned(Two)),
        entry("tuned K3 V2, plain mean", plain_mean(keys(Three)), plain_mean(tuned(Two))),
        entry("tuned K3 V2, signs", signed(keys(Three)), signed(tuned(Two))),
        scaled("tuned K3 V2, scaled", keys(Three), tuned(Two)),
        scaled("tuned 3, scaled", keys(Three), tuned(Three)),
        scaled("tuned K4 V2, scaled", keys(Four), tuned(Two)),
        scaled("tuned 4, scaled", keys(Four), tuned(Four)),
        // Unbiased keys, and values that keep their norm: what the other side's gain costs.
        entry("tuned 1, gain of values", tuned(One), tuned(One)),
        entry("tuned 2, gain of values", tuned(Two), tuned(Two)),
        entry("tuned 1, gain of keys", keys(One), keys(One)),
        entry("tuned 2, gain of keys", keys(Two), keys(Two)),
    ]
}

#[test]
fn codecs_rank_as_the_study_found() {
    let layers = LAYERS.map(Layer::open);
    let mut found = std::collections::BTreeMap::new();
    println!("{:28} {:>6} {:>8}", "codec", "bits", "error");
    for entry in entries() {
        let layouts =
            [entry.keys, entry.values].map(|scheme| *codec_of(scheme, DIM, CHUNK).layout());
        let bits = assigned_avg_bits(&layouts[0], &layouts[1], CHUNK);
        let error = error(&layers, &entry);
        println!("{:28} {bits:6.2} {error:8.4}", entry.name);
        found.insert(entry.name, (bits, error));
    }
    let of = |name: &str| found[name];
    let clearly = |better: &str, worse: &str, factor: f64| {
        let (b, w) = (of(better), of(worse));
        assert!(
            b.1 * factor <= w.1,
            "{better} {b:?} is not {factor} times better than {worse} {w:?}"
        );
    };
    assert!(of("tuned K3 V2").0 < of("compat 2").0, "at no more bits");
    clearly("compat 2", "compat 2, nothing raw", 1.3);
    clearly("tuned K3 V2", "compat 2", 1.4);
    clearly("tuned K3 V2, scaled", "compat 2", 1.4);
    clearly("tuned 2", "tuned K2 V1", 1.1);
    clearly("tuned K2 V1", "tuned 1", 1.1);
    clearly("tuned K3 V2", "tuned 2", 1.1);
    clearly("tuned 3, scaled", "tuned K3 V2, scaled", 1.1);
    clearly("tuned 4, scaled", "tuned 3, scaled", 1.5);
    for rate in [1, 2] {
        for side in ["keys", "values"] {
            clearly(&format!("tuned {rate}"), &format!("tuned {rate}, gain of {side}"), 1.02);
        }
    }
}
