//! Runs one job a line of its input and prints its milliseconds: our half of `compare_peer.py`.
//!
//! `evict TOKENS BUDGET`, `pack TOKENS`, `fetch TOKENS` (pack, then decode everything),
//! `decode TOKENS STEPS` (the steps alone), on 8 KV heads of 128 channels of f16.

use std::io::BufRead;
use std::time::Instant;

use half::f16;
use wgkv::cache::{CacheConfig, cpu::LayerCache};
use wgkv::layout::Bits;
use wgkv::nestedkv::{Budget, EvictConfig, cpu::compress_prefill};
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements, Tensor};

const HEADS: usize = 8;
const DIM: usize = 128;

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

/// Standard normal rows `[HEADS, tokens, DIM]` from a seed.
fn rows(tokens: usize, seed: u64) -> Vec<f16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    (0..HEADS * tokens * DIM)
        .map(|_| {
            let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
            f16::from_f64(radius * (core::f64::consts::TAU * uniform()).cos())
        })
        .collect()
}

fn tensor(data: &[f16], tokens: usize) -> wgkv::Result<Tensor<'_>> {
    Tensor::new("rows", Elements::F16(data), HEADS, tokens, DIM)
}

fn cache() -> wgkv::Result<LayerCache> {
    LayerCache::new(CacheConfig {
        profile: wgkv::layout::Profile::Compat,
        key_scale: false,
        rope: None,
        signs: None,
        rows: HEADS,
        head_dim_k: DIM,
        head_dim_v: DIM,
        k_bits: Bits::Two,
        v_bits: Bits::Two,
        chunk: 64,
        sinks: 0,
        recent: 0,
        dtype: Dtype::F16,
        codebook: Codebook::builtin(),
    })
}

fn run(line: &str) -> Answer<f64> {
    let mut words = line.split_whitespace();
    let job = words.next().unwrap_or("");
    let counts = words.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let (tokens, more) = (
        *counts.first().ok_or("a number of tokens is missing")?,
        counts.get(1).copied().unwrap_or(0),
    );
    let (keys, values) = (rows(tokens, 1), rows(tokens, 2));
    let (keys, values) = (tensor(&keys, tokens)?, tensor(&values, tokens)?);
    let start;
    match job {
        "evict" => {
            let config = EvictConfig::new(Budget::Uniform(u32::try_from(more)?));
            start = Instant::now();
            std::hint::black_box(compress_prefill(&keys, &values, &config)?);
        }
        "pack" | "fetch" => {
            let mut cache = cache()?;
            start = Instant::now();
            cache.append(&keys, &values)?;
            if job == "fetch" {
                std::hint::black_box(cache.fetch()?);
            }
        }
        "decode" => {
            let mut cache = cache()?;
            cache.append(&keys, &values)?;
            let steps: Vec<_> = (0..more as u64)
                .map(|step| (rows(1, 3 + 2 * step), rows(1, 4 + 2 * step)))
                .collect();
            start = Instant::now();
            for (key, value) in &steps {
                cache.append(&tensor(key, 1)?, &tensor(value, 1)?)?;
            }
        }
        _ => return Err(format!("no job {job:?}").into()),
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn main() -> Answer<()> {
    for line in std::io::stdin().lock().lines() {
        println!("{:.4}", run(&line?)?);
    }
    Ok(())
}
