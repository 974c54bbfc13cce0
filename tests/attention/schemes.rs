//! Pages of every scheme against the judge's attention on the decoded rows.

use proptest::prelude::*;
use wgkv::layout::{Bits, Gain, MeanDomain, Metadata, Profile, Scheme};
use wgkv::nsnquant::{Pairing, Rope};
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, Shape};
use crate::packed::{SLACK, shapes};
use crate::support::schemes::any_scheme;

/// Under key scales from 1/2 to 2 the products that add up to a logit are up to 4 times as large as
/// those of the query and the key.
pub const SCALED_SLACK: f64 = 4.0 * SLACK;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attention_over_any_scheme_is_that_of_the_decoded_rows(
        (shape, kinds, seed) in shapes(&[16, 64, 80, 112, 128], 60, 3),
        schemes in [any_scheme(), any_scheme()],
        causal in proptest::option::of(0..200u32),
        scaled in any::<bool>(),
        turned in proptest::option::of((prop::sample::select(Pairing::ALL.to_vec()), 1..=8usize)),
    ) {
        let mut case = Case::new(shape, kinds, seed);
        case.config.causal = causal;
        if scaled && !case.shape.pages.is_empty() {
            case.scale(seed);
        }
        // All channels turn, or the first ones.
        let rope = turned.map(|(pairing, eighths)| {
            Rope::with_theta(pairing, 1e4, case.shape.dim_k / 8 * eighths).expect("an embedding")
        });
        case.repack_turned(schemes, [kinds[1], kinds[2]], seed, rope);
        case.judge(&case.cpu(), if scaled { SCALED_SLACK } else { SLACK });
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
    let paper = |bits: usize| Profile::Paper.scheme(Bits::ALL[bits - 1]);
    vec![
        [paper(2), paper(1)],
        [tuned(2), paper(2)],
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
            case.config.causal = (number % 2 == 0).then_some(90);
            for slack in [SLACK, SCALED_SLACK] {
                if slack > SLACK {
                    case.scale(seed);
                }
                case.repack(pair, [Kind::Offset; 2], seed);
                println!("{pair:?} {dim_k} {dim_v} {chunk}");
                case.judge_paths(slack);
            }
        }
    }
}

/// Head dimensions of models beyond 64, 80 and 128, by the profiles that pack real keys: tuned under
/// key scales, paper without the keys' whole embedding.
#[test]
fn both_paths_attend_to_heads_of_every_width_of_models() {
    let bits = |bits: usize| Bits::ALL[bits - 1];
    for (dim, keys, values) in [(96, 3, 4), (160, 2, 2), (192, 1, 3), (256, 3, 2), (384, 4, 1)] {
        let shape = Shape {
            batch: 1,
            kv_heads: 2,
            group: 2,
            tokens: 2,
            dim_k: dim,
            dim_v: dim,
            raw: vec![5, 0],
            pages: vec![1, 2],
            chunk: 9,
            bits: (2, 2),
            dtype: Dtype::F16,
        };
        let kinds = [Kind::Normal, Kind::Offset, Kind::Offset];
        let mut tuned = Case::new(shape.clone(), kinds, dim as u64);
        tuned.scale(dim as u64);
        let schemes = [Profile::Tuned.key_scheme(bits(keys)), Profile::Tuned.scheme(bits(values))];
        tuned.repack(schemes, [Kind::Offset; 2], dim as u64);
        println!("tuned {dim}");
        tuned.judge_paths(SCALED_SLACK);

        let mut paper = Case::new(shape, kinds, dim as u64);
        let schemes = [keys, values].map(|rate| Profile::Paper.scheme(bits(rate.min(2))));
        let pairing = Pairing::ALL[dim / 32 % 2];
        let rope = Rope::with_theta(pairing, 1e4, dim).expect("an embedding");
        paper.repack_turned(schemes, [Kind::Offset; 2], dim as u64, Some(rope));
        paper.config.causal = Some(20);
        println!("paper {dim} {pairing:?}");
        paper.judge_paths(SLACK);
    }
}

/// Keys whose embedding the codec takes off, near the start and far from it, in few channels and in
/// all, in head dimensions that do and do not fit the workgroup's memory at once.
#[test]
fn both_paths_turn_the_mean_to_each_position() {
    let (paper, tuned) = (Profile::Paper.scheme(Bits::Two), Profile::Tuned.scheme(Bits::Three));
    let mut signed = tuned;
    signed.signs = Some(5);
    let cases = [
        (paper, 128, 64, Pairing::Halves, 128, 0),
        (paper, 80, 13, Pairing::Interleaved, 80, (1 << 24) - 3000),
        (tuned, 64, 64, Pairing::Interleaved, 32, 100_000),
        (tuned, 512, 16, Pairing::Halves, 512, 0),
        (signed, 112, 33, Pairing::Halves, 56, 70_000),
    ];
    for (scheme, dim, chunk, pairing, channels, base) in cases {
        let shape = Shape {
            batch: 1,
            kv_heads: 2,
            group: 3,
            tokens: 2,
            dim_k: dim,
            dim_v: 64,
            raw: vec![9, 0],
            pages: vec![3, 2],
            chunk,
            bits: (2, 2),
            dtype: Dtype::F16,
        };
        let mut case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], 3);
        case.positions.iter_mut().chain(&mut case.page_positions).for_each(|at| *at += base);
        let rope = Rope::with_theta(pairing, 5e5, channels).expect("an embedding");
        case.repack_turned([scheme, tuned], [Kind::Offset; 2], 3, Some(rope));
        case.config.causal = (base % 3 == 0).then_some(base + 90);
        println!("{scheme:?} {dim} {chunk} {pairing:?}");
        case.judge_paths(SLACK);
    }
}
