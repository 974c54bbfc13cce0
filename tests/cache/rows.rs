//! Copies of token rows: device and host equal bit for bit, in every pair of types.

use half::{bf16, f16};
use proptest::prelude::*;
use wgkv::cache::plan::Move;
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::shape::{Dtype, Elements};

use crate::support;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Words whose elements are of every kind: ordinary, huge, tiny, NaN, Inf, zero of both signs.
pub fn words(count: usize, seed: u64) -> Vec<u32> {
    const ODD: [u32; 12] = [
        0,
        0x8000_0000,
        0x7fc0_0000,
        0xff80_0001,
        0x7f80_0000,
        0xff80_0000,
        0x477f_efff,
        0x477f_f000,
        0x4780_0000,
        0xc7ff_ffff,
        0x3380_0001,
        0x7f7f_ffff,
    ];
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let word = (state >> 32) as u32;
            if word.is_multiple_of(7) { ODD[(state >> 20) as usize % ODD.len()] } else { word }
        })
        .collect()
}

fn elements(words: &[u32], dtype: Dtype) -> Elements<'_> {
    match dtype {
        Dtype::F32 => Elements::F32(bytemuck::cast_slice(words)),
        Dtype::F16 => Elements::F16(bytemuck::cast_slice::<u32, f16>(words)),
        Dtype::Bf16 => Elements::Bf16(bytemuck::cast_slice::<u32, bf16>(words)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn device_equals_host(
        rows in 1usize..5, head_dim in prop::sample::select(vec![8usize, 64, 80, 128]),
        tokens in 0usize..40, from_first in 0usize..9, from_more in 0usize..9,
        to_first in 0usize..9, to_more in 0usize..9, from in 0usize..3, to in 0usize..3,
        seed in any::<u64>(),
    ) {
        let plan = Move {
            rows, head_dim, tokens,
            from_tokens: from_first + tokens + from_more, from_first, from_dtype: DTYPES[from],
            to_tokens: to_first + tokens + to_more, to_first, to_dtype: DTYPES[to],
        };
        let source = words(rows * plan.from_tokens * head_dim * plan.from_dtype.bytes() / 4, seed);
        let mut host = words(rows * plan.to_tokens * plan.to_words(), !seed);
        let context = support::context();
        let device = context.upload("result", bytemuck::cast_slice(&host)).unwrap();
        let input = context.upload("source", bytemuck::cast_slice(&source)).unwrap();
        cpu::rows::copy(&plan, elements(&source, plan.from_dtype), &mut host).unwrap();
        support::run(|rec| gpu::rows::record(rec, &plan, Slice::all(&input), Slice::all(&device)))
            .unwrap();
        let mut got = support::download_as::<u32>(&device);
        got.truncate(host.len());
        prop_assert_eq!(got, host);
    }
}

#[test]
fn rounds_to_f16_within_its_range() {
    let source = [1e5f32, -1e5, 65504.0, 65519.9, 65520.0, f32::INFINITY, 1e-8, -0.0];
    let plan = Move {
        rows: 1,
        head_dim: 8,
        tokens: 1,
        from_tokens: 1,
        from_first: 0,
        from_dtype: Dtype::F32,
        to_tokens: 1,
        to_first: 0,
        to_dtype: Dtype::F16,
    };
    let mut out = [0u32; 4];
    cpu::rows::copy(&plan, Elements::F32(&source), &mut out).unwrap();
    let expected =
        [65504.0, -65504.0, 65504.0, 65504.0, 65504.0, f32::INFINITY, 0.0, -0.0].map(f16::from_f32);
    let got: &[f16] = bytemuck::cast_slice(&out);
    assert_eq!(
        got.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        expected.map(f16::to_bits).to_vec()
    );
}

#[test]
fn refuses_spans_outside_the_tensors() {
    let plan = Move {
        rows: 1,
        head_dim: 8,
        tokens: 2,
        from_tokens: 3,
        from_first: 2,
        from_dtype: Dtype::F16,
        to_tokens: 2,
        to_first: 0,
        to_dtype: Dtype::F16,
    };
    assert!(matches!(plan.check(), Err(wgkv::Error::OutOfRange { .. })));
    let plan = Move { from_first: 1, ..plan };
    let source = [f16::ONE; 24];
    let mut out = [0u32; 8];
    assert!(cpu::rows::copy(&plan, Elements::F16(&source), &mut out).is_ok());
    assert!(cpu::rows::copy(&plan, Elements::F16(&source[..16]), &mut out).is_err());
    assert!(cpu::rows::copy(&plan, Elements::F16(&source), &mut out[..4]).is_err());
    let other = [bf16::ONE; 24];
    assert!(matches!(
        cpu::rows::copy(&plan, Elements::Bf16(&other), &mut out),
        Err(wgkv::Error::Dtype { .. })
    ));
}
