//! Ordered compaction.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::primitives::cpu::compact::compact as on_cpu;
use wgkv::primitives::cpu::scan::offsets;
use wgkv::primitives::cpu::select::threshold;
use wgkv::primitives::gpu::{compact, select};

use super::{select::keys, upload};
use crate::support;

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn gpu_equals_cpu(
        rows in 1usize..9,
        tokens in prop_oneof![1usize..50, 1000usize..1100, 2040usize..2060, 4090usize..9000],
        seed in any::<u64>(),
        levels in 1u64..50,
        share in 0.0f64..=1.0,
        sinks in 0usize..6,
    ) {
        let scores: Vec<f32> = (0..(rows * tokens) as u64)
            .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % levels)
            .map(|x| x as f32)
            .collect();
        let count = (share * tokens as f64) as u32;
        let counts = vec![count; rows];
        let ends = offsets("counts", &counts).expect("offsets");
        let starts: Vec<u32> = (0..=rows).map(|r| (r * tokens) as u32).collect();
        let buffers = [upload(&scores), upload(&counts)];
        let index = [upload(&ends), upload(&starts)];
        let total = u64::from(count) * rows as u64;
        let got = support::run(|rec| {
            let (scores, starts) = (Slice::all(&buffers[0]), Slice::all(&index[1]));
            let counts = Slice::all(&buffers[1]);
            let at = select::record(rec, scores, starts, rows, tokens, sinks as u32, counts)?;
            let (at, ends) = (Slice::all(&at), Slice::all(&index[0]));
            compact::record(rec, scores, rows, tokens, sinks as u32, at, ends, total)
        }).expect("positions");
        let mut positions: Vec<u32> = support::download_as(&got.positions);
        positions.truncate(total as usize);
        let mut sources: Vec<u32> = support::download_as(&got.sources);
        sources.truncate(total as usize);
        for row in 0..rows {
            let keys = keys(&scores[row * tokens..(row + 1) * tokens], sinks);
            let mut want = vec![0; count as usize];
            on_cpu(&keys, threshold(&keys, count as usize), &mut want);
            let range = ends[row] as usize..ends[row + 1] as usize;
            prop_assert_eq!(&positions[range.clone()], want.as_slice());
            let flat: Vec<u32> = want.iter().map(|p| p + (row * tokens) as u32).collect();
            prop_assert_eq!(&sources[range], flat.as_slice());
        }
    }
}
