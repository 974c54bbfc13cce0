//! Thresholds.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::primitives::cpu::select::{Threshold, threshold};
use wgkv::primitives::gpu::select;
use wgkv::primitives::order::{SINK_KEY, order_key};

use super::upload;
use crate::support;

/// Rows of scores, some empty, with ties and every kind of special value.
pub fn rows() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let value = prop_oneof![
        4 => any::<f32>(),
        4 => (0u32..6).prop_map(|x| x as f32),
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY]),
    ];
    let length = prop_oneof![
        3 => 0usize..40,
        2 => 200usize..600,
        1 => 1020usize..1030,
        1 => 4090usize..9000,
    ];
    prop::collection::vec(
        length.prop_flat_map(move |n| prop::collection::vec(value.clone(), n)),
        1..8,
    )
}

pub fn keys(row: &[f32], sinks: usize) -> Vec<u32> {
    row.iter().enumerate().map(|(i, &s)| if i < sinks { SINK_KEY } else { order_key(s) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn gpu_equals_cpu_and_sorting(rows in rows(), share in 0.0f64..1.2, sinks in 0usize..6) {
        let counts: Vec<u32> = rows.iter().map(|r| (share * r.len() as f64) as u32).collect();
        let mut starts = vec![0u32];
        for row in &rows {
            starts.push(starts[starts.len() - 1] + row.len() as u32);
        }
        let (scores, starts, on_device) = (upload(&rows.concat()), upload(&starts), upload(&counts));
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let found = support::run(|rec| {
            let (scores, starts, counts) =
                (Slice::all(&scores), Slice::all(&starts), Slice::all(&on_device));
            select::record(rec, scores, starts, rows.len(), longest, sinks as u32, counts)
        });
        let found: Vec<[u32; 4]> = support::download_as(&found.expect("thresholds"));
        for ((row, count), got) in rows.iter().zip(counts).zip(found) {
            let keys = keys(row, sinks);
            let want = threshold(&keys, count as usize);
            let [key, ties, equal, above] = got;
            prop_assert_eq!(Threshold { key, ties, equal, above }, want);
            let mut sorted = keys.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            if !row.is_empty() {
                let count = (count as usize).min(row.len());
                prop_assert_eq!(key, sorted[count.max(1) - 1]);
                if count > 0 {
                    prop_assert_eq!(above + ties, count as u32);
                } else {
                    prop_assert_eq!((ties, above), (0, 0));
                }
            }
        }
    }
}
