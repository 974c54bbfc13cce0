//! Caches of every element type: what comes in raw goes out with its bits, on both paths.

use half::{bf16, f16};
use wgkv::cache::{CacheConfig, cpu, gpu};
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::layout::Bits;
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements, Tensor};

use crate::layer::{bits, close};
use crate::support;

const ROWS: usize = 2;
const TOKENS: usize = 60;
const HEAD_DIM: usize = 64;

fn config(dtype: Dtype) -> CacheConfig {
    CacheConfig {
        profile: wgkv::layout::Profile::Compat,
        key_scale: false,
        rope: None,
        signs: None,
        rows: ROWS,
        head_dim_k: HEAD_DIM,
        head_dim_v: HEAD_DIM,
        k_bits: Bits::Two,
        v_bits: Bits::Two,
        chunk: 16,
        sinks: 4,
        recent: 0,
        dtype,
        codebook: Codebook::builtin(),
    }
}

/// Host and device caches of the same tokens, after a trim that breaks a chunk: what both fetch.
fn fetched(dtype: Dtype, data: Elements<'_>, trim: usize) -> [[Vec<f16>; 2]; 2] {
    let tensor = Tensor::new("tensor", data, ROWS, TOKENS, HEAD_DIM).unwrap();
    let mut host = cpu::LayerCache::new(config(dtype)).unwrap();
    host.append(&tensor, &tensor).unwrap();
    host.trim(trim).unwrap();
    let ours = host.fetch().unwrap();

    let context = support::context();
    let mut device = gpu::LayerCache::new(context, config(dtype)).unwrap();
    let buffer = context.upload("tensor", data.bytes()).unwrap();
    let tensor =
        DeviceTensor::new("tensor", Slice::all(&buffer), dtype, ROWS, TOKENS, HEAD_DIM).unwrap();
    let theirs = support::run(|rec| {
        device.append(rec, &tensor, &tensor)?;
        device.trim(rec, trim)?;
        device.fetch(rec)
    })
    .unwrap();
    assert_eq!(device.counters(), host.counters());
    let theirs = [&theirs.keys, &theirs.values].map(support::download_as::<f16>);
    [[ours.keys, ours.values], theirs]
}

/// Values that grow from row to row, up to `top`.
fn values(top: f32) -> Vec<f32> {
    (0..ROWS * TOKENS * HEAD_DIM)
        .map(|index| {
            let token = index / HEAD_DIM % TOKENS;
            let scale = top.powf((token as f32 + 1.0) / TOKENS as f32);
            scale * ((index * index % 8191) as f32 / 4096.0 - 1.0)
        })
        .collect()
}

#[test]
fn every_type_is_held_as_it_came() {
    let wide = values(1e3);
    let narrow: Vec<f16> = wide.iter().map(|x| f16::from_f32(*x)).collect();
    let brain: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
    for data in [Elements::F32(&wide), Elements::F16(&narrow), Elements::Bf16(&brain)] {
        // 60 tokens: 4 sinks, 3 chunks, 8 in the tail; 47 tokens: 2 chunks and 11 that came back.
        let [host, device] = fetched(data.dtype(), data, 13);
        for (host, device) in host.iter().zip(&device) {
            assert_eq!(host.len(), ROWS * 47 * HEAD_DIM);
            close(&bits(device), &bits(host), HEAD_DIM);
            for row in 0..ROWS {
                for index in 0..4 * HEAD_DIM {
                    let came = f16::from_f32(data.get(row * TOKENS * HEAD_DIM + index));
                    for got in [host, device] {
                        assert_eq!(got[row * 47 * HEAD_DIM + index].to_bits(), came.to_bits());
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_beyond_f16_survives_in_the_cache() {
    let brain: Vec<bf16> = values(1e30).iter().map(|x| bf16::from_f32(*x)).collect();
    let [host, device] = fetched(Dtype::Bf16, Elements::Bf16(&brain), 0);
    for (host, device) in host.iter().zip(&device) {
        assert!(host.iter().chain(device).all(|x| x.is_finite()));
        assert_eq!(host.last().map(|x| x.to_f32().abs()), Some(65504.0));
        close(&bits(device), &bits(host), HEAD_DIM);
    }
}

#[test]
fn a_row_that_is_not_finite_harms_no_other() {
    let clean: Vec<f16> = values(4.0).into_iter().map(f16::from_f32).collect();
    let mut spoilt = clean.clone();
    // A sink, a packed token and a token of the tail of the first row.
    for (token, value) in [(1, 0x7e01u16), (20, 0x7c00), (55, 0xfe00)] {
        spoilt[token * HEAD_DIM + 3] = f16::from_bits(value);
    }
    let mut zeroed = clean;
    zeroed[20 * HEAD_DIM + 3] = f16::ZERO;
    let spoilt = fetched(Dtype::F16, Elements::F16(&spoilt), 0);
    let zeroed = fetched(Dtype::F16, Elements::F16(&zeroed), 0);
    for (spoilt, zeroed) in spoilt.iter().flatten().zip(zeroed.iter().flatten()) {
        for (index, (a, b)) in spoilt.iter().zip(zeroed).enumerate() {
            match (index / HEAD_DIM, index % HEAD_DIM) {
                (1, 3) => assert_eq!(a.to_bits(), 0x7e01),
                (55, 3) => assert_eq!(a.to_bits(), 0xfe00),
                _ => assert_eq!(a.to_bits(), b.to_bits(), "element {index}"),
            }
        }
    }
}
