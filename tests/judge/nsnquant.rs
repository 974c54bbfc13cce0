use wgkv::judge::nsnquant::{decode, encode, hadamard, rotate, rotate_back, unpack};
use wgkv::judge::{from_f16, to_f16};

use crate::support::golden::{Golden, index};

#[test]
fn hadamard_matrices_are_orthogonal() {
    for d in [8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224] {
        let h = hadamard(d);
        let flat = (d as f64).sqrt().recip();
        assert!(h.iter().all(|v| (v.abs() - flat).abs() < 1e-12), "order {d}");
        for row in 0..d {
            let mut unit = vec![0.0; d];
            unit[row] = 1.0;
            let back = rotate_back(&h, &rotate(&h, &unit));
            let off = back.iter().zip(&unit).fold(0.0, |a: f64, (x, y)| a.max((x - y).abs()));
            assert!(off < 1e-12, "order {d}, row {row}: {off}");
        }
    }
}

#[test]
fn hadamard_matrices_are_those_of_the_peer() {
    let file = Golden::open("nsn_codebooks.safetensors");
    // The data that ships holds one of them.
    let name = |d: usize| format!("hadamard_matrix_{d}");
    let orders: Vec<_> = [48, 96].into_iter().filter(|d| file.has(&name(*d))).collect();
    assert!(orders.contains(&96), "{orders:?}");
    for d in orders {
        let expected = file.numbers(&name(d));
        for (a, b) in hadamard(d).iter().zip(&expected) {
            assert!((a - b).abs() < 1e-6, "order {d}");
        }
    }
}

#[test]
fn codes_are_those_of_the_peer() {
    let file = Golden::open("nsn_cases.safetensors");
    let books = Golden::open("nsn_codebooks.safetensors");
    let mut seen = 0;
    for case in index()["nsnquant"].as_array().expect("cases") {
        let name = case["case"].as_str().expect("a name");
        let at = |part: &str| format!("{name}/{part}");
        if !file.has(&at("x")) || case["ill_conditioned"] == true {
            continue;
        }
        seen += 1;
        let number = |name: &str| case[name].as_u64().expect("a number") as usize;
        let (tokens, d, bits) = (number("T"), number("d"), number("bits"));
        let book = books.numbers(if bits == 1 { "codebook_signed" } else { "codebook_magnitude" });
        let (x, idx) = (file.numbers(&at("x")), file.bytes(&at("idx")));
        let margins = file.numbers(&at("idx_rel_margin"));
        let restored = file.numbers(&at("restored"));
        let [s1, s2, o] = ["s1", "s2", "o"].map(|part| file.numbers(&at(part)));
        for row in 0..x.len() / (tokens * d) {
            let pieces = tokens * d / 8;
            let encoded = encode(&x[row * tokens * d..][..tokens * d], d, bits as u32, &book);
            let mut chunk = encoded.chunk;
            for (i, index) in chunk.idx.iter().enumerate() {
                if margins[row * pieces + i] > 1e-5 {
                    assert_eq!(*index, idx[row * pieces + i], "{name} row {row} piece {i}");
                }
            }
            if bits == 2 {
                let signs = &file.bytes(&at("signs"))[row * pieces..][..pieces];
                for (i, value) in encoded.rotated.iter().enumerate() {
                    if value.abs() > 1e-4 {
                        assert_eq!(chunk.signs[i / 8] >> (i % 8) & 1, signs[i / 8] >> (i % 8) & 1);
                    }
                }
                chunk.signs = signs.to_vec();
            }
            let stored = [
                (&mut chunk.s1, &s1[row * tokens..][..tokens]),
                (&mut chunk.s2, &s2[row * tokens..][..tokens]),
                (&mut chunk.o, &o[row * d..][..d]),
            ];
            for (ours, theirs) in stored {
                for (ours, theirs) in ours.iter_mut().zip(theirs) {
                    if theirs.is_finite() {
                        let apart = to_f16(*ours).abs_diff(to_f16(*theirs));
                        assert!(apart <= 1 || (*ours == 0.0 && *theirs == 0.0), "{name}: {ours}");
                        *ours = *theirs;
                    }
                }
            }
            chunk.idx = idx[row * pieces..][..pieces].to_vec();
            let back = decode(&chunk, d, &book);
            for (token, values) in back.chunks(d).enumerate() {
                let expected = &restored[(row * tokens + token) * d..][..d];
                if expected.iter().any(|v| !v.is_finite()) {
                    continue;
                }
                let rms = (expected.iter().map(|v| v * v).sum::<f64>() / d as f64).sqrt();
                for (a, b) in values.iter().zip(expected) {
                    assert!((a - b).abs() <= 2e-5 * rms, "{name} token {token}: {a} against {b}");
                }
            }
        }
    }
    assert!(seen >= 5, "{seen} cases");
}

#[test]
fn pages_come_apart_as_laid_out() {
    let (d, r) = (24, 3);
    // 9 index bytes, 9 signs, 3 + 3 scales, 24 means, each part from a word on.
    let mut bytes: Vec<u8> = (1..=9).chain([0; 3]).chain(101..=109).chain([0; 3]).collect();
    for scale in [to_f16(1.5), to_f16(0.25), 0x8000 | 0x4f80] {
        bytes.extend(u16::to_le_bytes(scale));
    }
    bytes.extend([0; 2]);
    for scale in [1.0, 2.0, 3.0] {
        bytes.extend(to_f16(scale).to_le_bytes());
    }
    bytes.extend([0; 2]);
    (0..d).for_each(|c| bytes.extend(to_f16(c as f64).to_le_bytes()));
    let page: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
    let chunk = unpack(&page, d, 2, r);
    assert_eq!(chunk.idx, (1..=9).collect::<Vec<u8>>());
    assert_eq!(chunk.signs, (101..=109).collect::<Vec<u8>>());
    assert_eq!(chunk.s1, [1.5, 0.25, 4294967296.0]);
    assert_eq!(chunk.s2, [1.0, 2.0, 3.0]);
    assert_eq!(chunk.o[23], from_f16(to_f16(23.0)));
}
