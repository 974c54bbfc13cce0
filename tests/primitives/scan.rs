//! Running sums.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::primitives::cpu::scan::offsets;
use wgkv::primitives::gpu::scan;

use super::upload;
use crate::support;

fn on_gpu(counts: &[u32]) -> Vec<u32> {
    let buffer = upload(counts);
    let sums = support::run(|rec| scan::record(rec, Slice::all(&buffer), counts.len()));
    support::download_as(&sums.expect("offsets"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn gpu_equals_cpu(counts in prop::collection::vec(0u32..5000, 1..900)) {
        prop_assert_eq!(on_gpu(&counts), offsets("counts", &counts).expect("offsets"));
    }
}

#[test]
fn more_counts_than_workgroups_in_one_dimension() {
    let counts: Vec<u32> = (0..70_001).map(|i| i % 7).collect();
    assert_eq!(on_gpu(&counts), offsets("counts", &counts).expect("offsets"));
}

#[test]
fn totals_beyond_32_bits_are_refused() {
    assert!(offsets("counts", &[u32::MAX, 1]).is_err());
    assert_eq!(offsets("counts", &[u32::MAX, 0]).expect("offsets"), [0, u32::MAX, u32::MAX]);
    assert_eq!(offsets("counts", &[]).expect("offsets"), [0]);
}
