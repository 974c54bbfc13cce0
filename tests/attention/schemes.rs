//! Pages of every scheme against the judge's attention on the decoded rows.

use proptest::prelude::*;
use wgkv::layout::{Bits, Gain, MeanDomain, Metadata, Profile, Scheme};
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, Shape};
use crate::packed::{SLACK, shapes};
use crate::support::schemes::any_scheme;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attention_over_any_scheme_is_that_of_the_decoded_rows(
        (shape, kinds, seed) in shapes(&[16, 64, 80, 112, 128], 60, 3),
        schemes in [any_scheme(), any_scheme()],
        causal in proptest::option::of(0..200u32),
    ) {
        let mut case = Case::new(shape, kinds, seed);
        case.config.causal = causal;
        case.repack(schemes, [kinds[1], kinds[2]], seed);
        case.judge(&case.cpu(), SLACK);
    }
}

/// Pairs of schemes that caches use, and pairs that mix them.
fn pairs() -> Vec<[Scheme; 2]> {
    let tuned = |bits: usize| Profile::Tuned.scheme(Bits::ALL[bits - 1]);
    let compat = |bits: usize| Profile::Compat.scheme(Bits::ALL[bits - 1]);
    let mut plain = tuned(2);
    plain.mean = MeanDomain::Plain;
    plain.metadata = Metadata::Half;
    plain.gain = Gain::TokenNorm;
    let mut unit = compat(2);
    unit.metadata = Metadata::Four;
    unit.mean = MeanDomain::Hadamard;
    let mut signed = tuned(3);
    signed.signs = Some(1);
    vec![
        [tuned(1), tuned(1)],
        [tuned(2), tuned(2)],
        [tuned(3), tuned(2)],
        [tuned(4), tuned(4)],
        [tuned(2), tuned(3)],
        [compat(2), tuned(1)],
        [tuned(4), compat(1)],
        [plain, plain],
        [unit, unit],
        [signed, signed],
    ]
}

#[test]
fn both_paths_attend_to_every_scheme() {
    for (number, pair) in pairs().into_iter().enumerate() {
        for (dim_k, dim_v, chunk) in [(64, 64, 64), (80, 64, 13)] {
            let shape = Shape {
                batch: 2,
                kv_heads: 1,
                group: 3,
                tokens: 2,
                dim_k,
                dim_v,
                raw: vec![9, 0],
                pages: vec![3, 2],
                chunk,
                bits: (2, 2),
                dtype: Dtype::F16,
            };
            let seed = number as u64;
            let mut case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], seed);
            case.repack(pair, [Kind::Offset; 2], seed);
            case.config.causal = (number % 2 == 0).then_some(90);
            println!("{pair:?} {dim_k} {dim_v} {chunk}");
            case.judge_paths(SLACK);
        }
    }
}
