use half::f16;
use wgkv::layout::encode_scale;
use wgkv::nsnquant::Codes;

use crate::common::{PATHS, cases};

/// Root mean square of each token.
fn token_rms(values: &[f64], dim: usize) -> Vec<f64> {
    let rms = |token: &[f64]| (token.iter().map(|v| v * v).sum::<f64>() / dim as f64).sqrt();
    values.chunks_exact(dim).map(rms).collect()
}

/// The pages that the reference stored.
fn reference_pages(file: &crate::support::golden::Golden, case: &crate::common::Case) -> Vec<u32> {
    let numbers = |part: &str| file.numbers(&case.tensor(part));
    let halves = |part| numbers(part).into_iter().map(|v| f16::from_f64(v).to_bits()).collect();
    let codes = Codes {
        idx: file.bytes(&case.tensor("idx")),
        signs: (case.codec.layout().bits().get() == 2).then(|| file.bytes(&case.tensor("signs"))),
        s1: numbers("s1").into_iter().map(|v| encode_scale(v as f32)).collect(),
        s2: halves("s2"),
        o: halves("o"),
        grids: Vec::new(),
    };
    codes.pack(&case.codec).expect("the reference's shape")
}

#[test]
fn restores_what_the_reference_restores() {
    let (file, cases) = cases();
    for case in cases.iter().filter(|case| !case.overflow) {
        let dim = case.codec.layout().head_dim();
        let pages = reference_pages(&file, case);
        let restored = file.numbers(&case.tensor("restored"));
        let rms = token_rms(&restored, dim);
        for path in PATHS {
            let ours = path.decode(&case.codec, &pages).expect("whole pages");
            for (i, (value, reference)) in ours.iter().zip(&restored).enumerate() {
                let limit = 5e-6 * rms[i / dim];
                assert!(
                    (f64::from(*value) - reference).abs() <= limit,
                    "{} {path:?} {i}: {value} against {reference}",
                    case.name
                );
            }
        }
        if !case.ill {
            let decoded = file.numbers(&case.tensor("decoded"));
            let mut row = vec![0.0; dim];
            for (t, token) in decoded.chunks_exact(dim).enumerate() {
                let chunk = case.codec.layout().chunk();
                let page = &pages[t / chunk * case.codec.layout().words()..];
                let gain = case.codec.centroids(page, t % chunk, &mut row);
                for (value, reference) in row.iter().zip(token) {
                    let difference = f64::from(value * gain) - reference;
                    assert!(difference.abs() <= 1e-5, "{} token {t}", case.name);
                }
            }
        }
    }
}

#[test]
fn a_chunk_of_zeros_comes_back_as_zeros() {
    for path in PATHS {
        for bits in [1, 2] {
            let codec = crate::common::codec(80, bits, 6);
            let data = vec![0.0f32; 6 * 80];
            let pages =
                path.encode(&codec, wgkv::shape::Elements::F32(&data), &[0]).expect("a page");
            let codes = Codes::unpack(&codec, &pages).expect("a page");
            assert!(codes.idx.iter().all(|i| *i == 0));
            assert!(codes.signs.iter().flatten().all(|s| *s == 255));
            assert_eq!(path.decode(&codec, &pages).expect("rows"), data);
        }
    }
}
