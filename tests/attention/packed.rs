//! Packed pages against the judge's attention on the decoded rows.

use proptest::prelude::*;
use wgkv::attention::AttendConfig;
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, PATHS, Random, Shape};
use crate::raw::groups;

/// See [`Case::judge`].
pub const SLACK: f64 = 2.0;

/// Tokens of the longest rows.
const LONG: usize = 3000;

pub const DIMS: [usize; 12] = [16, 32, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];

pub fn shapes(
    dims: &'static [usize],
    most_raw: usize,
    most_pages: usize,
) -> impl Strategy<Value = (Shape, [Kind; 3], u64)> {
    let kind = || {
        prop_oneof![
            Just(Kind::Normal),
            Just(Kind::Offset),
            Just(Kind::Constant(0.5)),
            Just(Kind::Constant(0.0)),
            Just(Kind::Scaled(1e-5)),
            Just(Kind::Scaled(100.0)),
            Just(Kind::Holes),
        ]
    };
    let dim = || proptest::sample::select(dims);
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::F16), Just(Dtype::Bf16)];
    let heads = (1..4usize, 1..4usize, 1..6usize, 1..4usize);
    let chunks = proptest::sample::select(vec![2usize, 5, 16, 33, 64, 128]);
    let bits = (1..3u32, 1..3u32);
    (
        heads,
        dim(),
        dim(),
        dtype,
        chunks,
        bits,
        any::<bool>(),
        [kind(), kind(), kind()],
        any::<u64>(),
    )
        .prop_flat_map(
            move |(heads, dim_k, dim_v, dtype, chunk, bits, packed, kinds, seed)| {
                let (batch, kv_heads, group, tokens) = heads;
                let rows = batch * kv_heads;
                let pages = if packed { rows } else { 0 };
                // Long rows are few, for the software adapter.
                let long = if rows > 2 { most_raw } else { LONG };
                let lengths = prop_oneof![6 => 0..=most_raw, 1 => most_raw..=long];
                let raw = proptest::collection::vec(lengths, rows);
                let pages = proptest::collection::vec(0..=most_pages, pages);
                (raw, pages).prop_map(move |(raw, pages)| {
                    let shape = Shape {
                        batch,
                        kv_heads,
                        group,
                        tokens,
                        dim_k,
                        dim_v,
                        raw,
                        pages,
                        chunk,
                        bits,
                        dtype,
                    };
                    (shape, kinds, seed)
                })
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn attention_is_that_of_the_decoded_rows(
        (shape, kinds, seed) in shapes(&DIMS, 150, 3),
        causal in proptest::option::of(0..300u32),
    ) {
        let mut case = Case::new(shape, kinds, seed);
        case.config.causal = causal;
        case.judge(&case.cpu(), SLACK);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_gpu_agrees_with_the_decoded_rows(
        (shape, kinds, seed) in shapes(&[32, 64, 80, 128], 300, 3),
        causal in proptest::option::of(0..300u32),
    ) {
        let mut case = Case::new(shape, kinds, seed);
        case.config.causal = causal;
        case.judge(&case.gpu(), SLACK);
    }
}

#[test]
fn every_head_dimension_works_on_both_paths() {
    for dim in DIMS {
        let mut shape = Shape::simple(9, dim, Dtype::F16);
        (shape.pages, shape.chunk, shape.group) = (vec![2], 16, 3);
        let case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], 24);
        case.judge_paths(SLACK);
    }
}

#[test]
fn query_heads_read_the_packed_head_of_their_group() {
    groups(true, |case| case.judge_paths(SLACK));
}

#[test]
fn packed_keys_and_values_may_differ_in_width_and_rate() {
    for (dim_k, dim_v) in [(192, 128), (64, 256), (256, 64), (80, 112)] {
        for bits in [(1, 2), (2, 1)] {
            let mut shape = Shape::simple(7, dim_k, Dtype::F16);
            (shape.dim_v, shape.batch, shape.kv_heads, shape.group) = (dim_v, 2, 3, 2);
            (shape.raw, shape.pages) = (vec![20, 0, 4, 5, 64, 1], vec![3, 0, 1, 2, 1, 2]);
            shape.bits = bits;
            let case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], 21);
            case.judge_paths(SLACK);
        }
    }
}

#[test]
fn non_finite_rows_of_a_chunk_harm_no_neighbour() {
    let mut shape = Shape::simple(0, 64, Dtype::F16);
    shape.pages = vec![2];
    let case = Case::new(shape, [Kind::Normal, Kind::Holes, Kind::Holes], 22);
    case.judge_paths(SLACK);
}

#[test]
fn causal_attention_goes_by_positions_in_pages() {
    let mut shape = Shape::simple(20, 64, Dtype::F16);
    (shape.pages, shape.group, shape.tokens) = (vec![4], 2, 5);
    let mut case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Normal], 23);
    for first in [0, 100, 270, 276] {
        case.config.causal = Some(first);
        case.judge_paths(SLACK);
    }
}

#[test]
fn soft_caps_and_windows_hold_for_rows_side_by_side() {
    for kind in [Kind::Normal, Kind::Scaled(30.0)] {
        let mut shape = Shape::simple(130, 64, Dtype::F16);
        (shape.pages, shape.group, shape.tokens) = (vec![3], 3, 5);
        let mut case = Case::new(shape, [kind, Kind::Offset, Kind::Normal], 27);
        for (soft_cap, window) in
            [(Some(0.5), None), (Some(30.0), Some(1)), (None, Some(40)), (None, Some(u32::MAX))]
        {
            case.config = AttendConfig { scale: Some(0.2), causal: Some(200), soft_cap, window };
            case.judge_paths(SLACK);
        }
        case.config = AttendConfig { soft_cap: Some(50.0), ..AttendConfig::default() };
        case.judge_paths(SLACK);
    }
}

#[test]
fn pages_that_no_encoder_made_give_finite_outputs() {
    for bits in [1, 2] {
        let mut shape = Shape::simple(3, 64, Dtype::F32);
        (shape.pages, shape.bits, shape.group) = (vec![3], (bits, bits), 2);
        let mut case = Case::new(shape, [Kind::Normal; 3], 25);
        let mut random = Random(26);
        for pages in [&mut case.key_pages, &mut case.value_pages] {
            pages.iter_mut().for_each(|word| *word = random.bits() as u32);
        }
        for path in PATHS {
            let got = case.run(path);
            assert!(got.out.iter().chain(&got.lse).all(|v| v.is_finite()), "{path:?}: {got:?}");
        }
    }
}
