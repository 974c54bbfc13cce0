//! Copies of token rows.

use half::{bf16, f16};
use proptest::prelude::*;
use wgkv::Error;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::primitives::cpu::gather::{gather as on_cpu, gather_raw};
use wgkv::primitives::gpu::gather;
use wgkv::shape::{Elements, Tensor};

use super::upload;
use crate::support;

/// Copies on the GPU; the row that went beyond f16, if any.
fn on_gpu(data: &Tensor<'_>, sources: &[u32]) -> (Vec<u16>, Option<u32>) {
    let (buffer, index) = (upload(data.data().bytes()), upload(sources));
    let (rows, tokens, dim) = (data.rows(), data.tokens(), data.head_dim());
    let dtype = data.data().dtype();
    let tensor = DeviceTensor::new("data", Slice::all(&buffer), dtype, rows, tokens, dim);
    let tensor = tensor.expect("a tensor");
    let got =
        support::run(|rec| gather::record(rec, &tensor, Slice::all(&index), sources.len() as u64))
            .expect("rows");
    let mut copied: Vec<u16> = support::download_as(&got.rows);
    copied.truncate(sources.len() * dim);
    (copied, gather::first_beyond(&support::download(&got.beyond)).expect("a word"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any bits: NaN payloads, infinities, subnormals and values that do not fit.
    #[test]
    fn gpu_equals_cpu_on_any_bits(
        tokens in 1usize..40,
        dim in prop::sample::select(vec![8usize, 16, 80, 112]),
        seed in any::<u64>(),
        every in 1usize..5,
        small in any::<bool>(),
    ) {
        let rows = 3;
        let bits: Vec<u32> = (0..(rows * tokens * dim) as u64)
            .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
            // Half of the cases stay within f16, so that nothing is refused.
            .map(|x| if small { x & 0x8fff_ffff | 0x3000_0000 } else { x })
            .collect();
        let singles: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
        let halves: Vec<f16> = bits.iter().map(|&b| f16::from_bits((b >> 16) as u16)).collect();
        let brains: Vec<bf16> = bits.iter().map(|&b| bf16::from_bits((b >> 16) as u16)).collect();
        let positions: Vec<u32> = (0..rows)
            .flat_map(|_| (0..tokens as u32).step_by(every))
            .collect();
        let each = positions.len() / rows;
        let offsets: Vec<u32> = (0..=rows).map(|r| (r * each) as u32).collect();
        let sources: Vec<u32> = positions
            .iter()
            .enumerate()
            .map(|(i, p)| (i / each * tokens) as u32 + p)
            .collect();
        for elements in [Elements::F32(&singles), Elements::F16(&halves), Elements::Bf16(&brains)] {
            let data = Tensor::new("data", elements, rows, tokens, dim).expect("a tensor");
            let (copied, beyond) = on_gpu(&data, &sources);
            match on_cpu("data", &data, &offsets, &positions) {
                Ok(want) => {
                    let want: Vec<u16> = want.iter().map(|x| x.to_bits()).collect();
                    prop_assert_eq!(copied, want);
                    prop_assert_eq!(beyond, None);
                }
                Err(Error::BeyondF16 { row, .. }) => {
                    prop_assert_eq!(Some(row as u32), beyond.map(|kept| sources[kept as usize]));
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        let raw = gather_raw("data", &halves, &Tensor::new("data", Elements::F16(&halves), rows, tokens, dim).expect("a tensor"), &offsets, &positions).expect("rows");
        for (kept, source) in raw.chunks(dim).zip(&sources) {
            let from = *source as usize * dim;
            let same = kept.iter().zip(&halves[from..from + dim]).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert!(same);
        }
    }
}

#[test]
fn places_that_are_not_there_are_refused() {
    let data = [f16::ONE; 2 * 4 * 8];
    let tensor = Tensor::new("data", Elements::F16(&data), 2, 4, 8).expect("a tensor");
    let copy = |offsets: &[u32], positions: &[u32]| on_cpu("data", &tensor, offsets, positions);
    assert!(copy(&[0, 1, 2], &[3, 3]).is_ok());
    assert!(copy(&[0, 1, 2], &[3, 4]).is_err());
    assert!(copy(&[0, 2, 1], &[3]).is_err());
    assert!(copy(&[0, 1], &[3]).is_err());
    assert!(copy(&[0, 0, 0], &[]).expect("no rows").is_empty());
    // The GPU reads the nearest row that is there, never outside.
    let (copied, _) = on_gpu(&tensor, &[7, 8, u32::MAX]);
    assert_eq!(copied, [f16::ONE.to_bits(); 24]);
}
