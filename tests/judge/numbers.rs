use half::{bf16, f16};
use wgkv::judge::{from_bf16, from_f16, to_f16};

#[test]
fn sixteen_bits_read_as_they_are_defined() {
    for bits in 0..=u16::MAX {
        for (ours, theirs) in [
            (from_f16(bits), f16::from_bits(bits).to_f64()),
            (from_bf16(bits), bf16::from_bits(bits).to_f64()),
        ] {
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}: {ours}");
        }
    }
}

#[test]
fn halves_round_to_even() {
    let mut cases = vec![0.0, 65503.9, 65504.0, 65519.9, 65520.0, 65536.0, 1e9, 2.9e-8, 3e-8, 1e-9];
    for bits in (0..0x7bff).step_by(7) {
        let (low, high) = (from_f16(bits), from_f16(bits + 1));
        cases.extend([low, (low + high) / 2.0, low * 0.75 + high * 0.25, low * 0.2 + high * 0.8]);
    }
    for value in cases {
        for value in [value, -value] {
            assert_eq!(to_f16(value), f16::from_f64(value).to_bits(), "{value}");
        }
    }
}
