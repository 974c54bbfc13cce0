use half::f16;
use wgkv::nsnquant::{Codes, KeyScales, cpu};
use wgkv::shape::Elements;

use crate::common::{PATHS, Path, cases, codec, steps};

#[test]
fn equals_the_reference_codes_and_scales() {
    let (file, cases) = cases();
    for case in &cases {
        let codec = &case.codec;
        let dim = codec.layout().head_dim();
        let values = codec.layout().chunk() * dim;
        if !case.ill {
            let y = file.numbers(&case.tensor("hadamard"));
            for (head, start) in case.starts().into_iter().enumerate() {
                let ours = cpu::analyse(codec, case.x.elements(), start).expect("a chunk").y;
                for (i, value) in ours.iter().enumerate() {
                    let reference = y[head * values + i];
                    assert!(
                        (f64::from(*value) - reference).abs() <= 5e-5,
                        "{} {head} {i}: {value} against {reference}",
                        case.name
                    );
                }
            }
        }
        for path in PATHS {
            let label = format!("{} {path:?}", case.name);
            let pages = path.encode(codec, case.x.elements(), &case.starts()).expect("pages");
            let codes = Codes::unpack(codec, &pages).expect("whole pages");
            assert_eq!(codes.pack(codec).expect("the same shape"), pages, "{label}");
            let halves = |part: &str| -> Vec<u16> {
                let numbers = file.numbers(&case.tensor(part));
                numbers.into_iter().map(|v| f16::from_f64(v).to_bits()).collect()
            };
            for (i, (ours, reference)) in codes.s1.iter().zip(halves("s1")).enumerate() {
                if f16::from_bits(reference).is_finite() {
                    assert!(steps(*ours, reference) <= 1, "{label} s1 {i}: {ours} {reference}");
                } else {
                    let scale = wgkv::layout::decode_scale(*ours);
                    assert!(scale.is_finite() && scale >= 65504.0, "{label} s1 {i}: {scale}");
                }
            }
            for (i, (ours, reference)) in codes.o.iter().zip(halves("o")).enumerate() {
                assert!(steps(*ours, reference) <= 1, "{label} o {i}: {ours} {reference}");
            }
            if case.ill {
                continue;
            }
            for (i, (ours, reference)) in codes.s2.iter().zip(halves("s2")).enumerate() {
                assert!(steps(*ours, reference) <= 1, "{label} s2 {i}: {ours} {reference}");
            }
            let idx = file.bytes(&case.tensor("idx"));
            let margin = file.numbers(&case.tensor("idx_rel_margin"));
            let zero = case.name.contains("allzero");
            for (i, (ours, reference)) in codes.idx.iter().zip(&idx).enumerate() {
                if margin[i] > 1e-5 || zero {
                    assert_eq!(ours, reference, "{label} idx {i}, margin {}", margin[i]);
                }
            }
            if let Some(signs) = &codes.signs {
                let reference = file.bytes(&case.tensor("signs"));
                let y = file.numbers(&case.tensor("hadamard"));
                for (i, (ours, reference)) in signs.iter().zip(&reference).enumerate() {
                    for channel in (0..8).filter(|c| y[8 * i + c].abs() > 1e-4 || zero) {
                        let same = (ours ^ reference) >> channel & 1 == 0;
                        assert!(same, "{label} sign {i} {channel}");
                    }
                }
            }
        }
    }
}

/// The kernel has no guards but its own: tables that name what is not there reach no further than the data.
#[test]
fn starts_and_scales_that_are_not_there_are_the_last() {
    for (dim, chunk) in [(64, 16), (80, 20), (128, 64)] {
        let codec = codec(dim, 2, chunk);
        let rows = chunk + 7;
        let data: Vec<f16> =
            (0..rows * dim).map(|i| f16::from_f32(((i * 37 % 101) as f32 - 50.0) / 16.0)).collect();
        let starts = [7, 8, 1 << 20, u32::MAX];
        let factors: Vec<f16> =
            (0..2 * dim).map(|i| f16::from_f32(0.5 + (i % 5) as f32 / 4.0)).collect();
        let of_page = [1, 2, 1 << 20, u32::MAX];
        let scales = KeyScales { values: &factors, of_page: &of_page };
        for scales in [None, Some(&scales)] {
            let pages = Path::Gpu
                .encode_at(&codec, Elements::F16(&data), &[0], &starts, scales)
                .expect("pages");
            let words = codec.layout().words();
            for (page, start) in pages.chunks(words).zip(starts) {
                assert_eq!(page, &pages[..words], "{dim} {start} {}", scales.is_some());
            }
        }
    }
}
