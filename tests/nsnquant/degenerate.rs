//! Chunks that leave a step nothing to divide by, through every codec: no NaN, no infinity, and an
//! error within the one that `wgkv::nsnquant` states.

use half::f16;
use wgkv::judge::widen;
use wgkv::layout::{Bits, Family, Gain, Metadata, Profile, Scheme};
use wgkv::nsnquant::{Codec, KeyScales, check_factors, key_scale};
use wgkv::shape::{Dtype, Elements};

use crate::common::{PATHS, Path};
use crate::generate::{Random, typed};
use crate::schemes::{codec_of, judge};
use crate::support::chunks::degenerate;
use crate::support::schemes::{covering, every, named};

fn length(row: impl Iterator<Item = f64>) -> f64 {
    row.map(|v| v * v).sum::<f64>().sqrt()
}

/// What the codes of a token may be long at most, over the length of the token that they stand for.
///
/// Unbiased: with P = y.c and C = |c|, a nearest centroid has P - C^2/2 >= -m^2/2 for the row of the
/// least norm m, so C^2 <= 2 P + m^2 over the pieces, and `min(y.y / P, 4) C` is largest at
/// `P = y.y / 4`. Rows of unit norm have C = sqrt(d / 8), and a gain of at most 4 sqrt(8).
fn stretch(codec: &Codec) -> f64 {
    let scheme = codec.scheme();
    match (scheme.gain, scheme.family) {
        (Gain::TokenNorm | Gain::NormPreserving, _) => 1.0,
        (Gain::Unbiased, Family::Unit) => 4.0,
        (Gain::Unbiased, Family::Plain) => 4.0 * (0.5 + least(codec)).sqrt(),
    }
}

/// The least square of a row of the book, a channel.
fn least(codec: &Codec) -> f64 {
    let width = codec.book().width();
    let square = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    codec.book().values().chunks_exact(width).map(square).fold(f64::MAX, f64::min) / width as f64
}

/// The codes of a token at their longest, over sqrt(d), before any scale.
fn longest(codec: &Codec) -> f64 {
    let scheme = codec.scheme();
    match (scheme.gain, scheme.family) {
        (Gain::TokenNorm, _) => 1.0,
        (_, Family::Unit) => 0.125f64.sqrt(),
        // C^2 <= 2 sqrt(d) C + m^2, as above.
        (_, Family::Plain) => 2.0 + least(codec).sqrt(),
    }
}

/// Holds one page's tokens to the stated error; returns the largest share of it that was used.
fn hold(label: &str, codec: &Codec, x: &[f64], page: &[u32], restored: &[f32]) -> f64 {
    let (dim, chunk) = (codec.layout().head_dim(), codec.layout().chunk());
    let root = (dim as f64).sqrt();
    let tame = |v: f64| if v.is_finite() { v } else { 0.0 };
    let x: Vec<f64> = x.iter().map(|v| tame(*v)).collect();
    let rows = || x.chunks_exact(dim);
    let mut stored_mean = vec![0.0f32; dim];
    codec.mean(page, &mut stored_mean);
    let stored: Vec<f64> = (0..chunk).map(|t| f64::from(codec.s1(page, t))).collect();
    // Scales of 16 bits are rounded after they were used.
    let open = codec.scheme().metadata == Metadata::Half;
    let rms = |row: &[f64]| {
        let top = row.iter().fold(0.0f64, |top, v| top.max(v.abs())).max(1e-300);
        (top * length(row.iter().map(|v| v / top)) / root).max(1e-8)
    };
    let used: Vec<f64> =
        rows().zip(&stored).map(|(row, s1)| if open { rms(row) } else { s1.max(1e-8) }).collect();
    let mean: Vec<f64> = if open {
        let column = |c: usize| rows().zip(&used).map(|(row, s1)| row[c] / s1).sum::<f64>();
        (0..dim).map(|c| column(c) / chunk as f64).collect()
    } else {
        stored_mean.iter().map(|o| f64::from(*o)).collect()
    };
    let shift = length(mean.iter().copied());
    let moved = length(mean.iter().zip(&stored_mean).map(|(a, b)| a - f64::from(*b)));
    // Of each token: its length, what the mean leaves of it, and what rounding leaves in that.
    let parts: Vec<[f64; 3]> = rows()
        .zip(&used)
        .map(|(row, s1)| {
            let size = length(row.iter().map(|v| v / s1));
            let rest = length(row.iter().zip(&mean).map(|(v, o)| v / s1 - o));
            [size, rest, 3e-6 * (size + shift)]
        })
        .collect();
    let second = |[_, rest, noise]: &[f64; 3]| (rest + noise).max(1e-8 * root);
    let top = parts.iter().map(second).fold(0.0, f64::max);
    let gain = if codec.scheme().gain == Gain::TokenNorm { 1.0 } else { 4.0 };
    // Half a step of 10/15 of a power of two and the rounding of the grid's ends; f16.
    let (step, floor) = match codec.scheme().metadata {
        Metadata::Half | Metadata::Linear => (1.0 + 2f64.powi(-11), 2f64.powi(-25) * root),
        Metadata::Four => (0.42f64.exp2(), gain * top / 1024.0 * 0.07f64.exp2()),
    };
    let mut share = 0.0f64;
    for (t, (row, part)) in rows().zip(&parts).enumerate() {
        let [size, rest, noise] = part;
        let coded = (stretch(codec) * step * second(part)).max(floor * longest(codec));
        let error = length(row.iter().zip(&restored[t * dim..]).map(|(a, b)| a - f64::from(*b)));
        let rounded = (stored[t] - used[t]).abs() * size * (1.0 + 1e-9);
        let bound = stored[t] * (rest + coded + moved + 2.0 * noise) + rounded + 1e-37;
        assert!(error <= bound, "{label} token {t}: off by {error:e}, stated {bound:e}");
        share = share.max(error / bound);
    }
    share
}

/// Packs every degenerate chunk and restores it; returns the largest share of the stated error and
/// the largest error relative to a chunk that is not all zeros.
fn pass(path: Path, label: &str, scheme: Scheme, dim: usize, chunk: usize, judged: bool) -> f64 {
    let codec = codec_of(scheme, dim, chunk);
    let chunks = degenerate(chunk, dim);
    let starts: Vec<u32> = (0..chunks.len()).map(|p| (p * chunk) as u32).collect();
    let values: Vec<f32> = chunks.iter().flat_map(|(_, values)| values.iter().copied()).collect();
    let data = Elements::F32(&values);
    let pages = path.encode(&codec, data, &starts).expect("pages");
    let restored = path.decode(&codec, &pages).expect("rows");
    let words = codec.layout().words();
    let (x, values) = (widen(data), chunk * dim);
    let mut share = 0.0f64;
    for (number, (kind, own)) in chunks.iter().enumerate() {
        let label = format!("{path:?} {label} {dim} x {chunk}, {kind}");
        let page = &pages[number * words..][..words];
        let rows = &restored[number * values..][..values];
        assert!(rows.iter().all(|v| v.is_finite()), "{label}: a value is not finite");
        if own.iter().all(|v| *v == 0.0) {
            // Both scales are at their floor of 1e-8; where codes have a length of their own, that of
            // nothing is 0.
            let most = if judged { 0.0 } else { 1e-15 };
            assert!(rows.iter().all(|v| v.abs() <= most), "{label}: zeros come back as others");
        }
        let own = &x[number * values..][..values];
        share = share.max(hold(&label, &codec, own, page, rows));
        // The transform leaves of that chunk's mean one channel and rounding, which is then an end of
        // the grid.
        if judged && *kind != "signs that alternate along a token" {
            judge(&label, &codec, data, &starts[number..=number], page, rows, None, &[])
                .unwrap_or_else(|e| panic!("{e}"));
        }
    }
    share
}

#[test]
fn every_codec_keeps_to_the_stated_error_on_the_cpu() {
    let mut most = 0.0f64;
    for scheme in every() {
        for (dim, chunk) in [(64, 64), (40, 7)] {
            most = most.max(pass(Path::Cpu, &format!("{scheme:?}"), scheme, dim, chunk, false));
        }
    }
    println!("{most:.2} of the stated error at most");
}

#[test]
fn every_pair_of_choices_keeps_to_the_stated_error_on_the_gpu() {
    for scheme in covering() {
        pass(Path::Gpu, &format!("{scheme:?}"), scheme, 64, 32, false);
    }
}

#[test]
fn profiles_keep_to_the_stated_error_and_to_the_judge_on_both_paths() {
    for path in PATHS {
        for (name, scheme) in named() {
            for (dim, chunk) in [(64, 64), (80, 13)] {
                let share = pass(path, &name, scheme, dim, chunk, true);
                println!("{path:?} {name} {dim} x {chunk}: {share:.2} of the stated error");
            }
        }
    }
}

/// As f16 and bf16 hold these chunks, with infinities where they hold them not.
#[test]
fn elements_of_16_bits_give_finite_rows() {
    for path in PATHS {
        for (name, scheme) in named() {
            let codec = codec_of(scheme, 64, 16);
            for (kind, values) in degenerate(16, 64) {
                for dtype in [Dtype::F16, Dtype::Bf16] {
                    let data = typed(&values, dtype);
                    let pages = path.encode(&codec, data.elements(), &[0]).expect("a page");
                    let rows = path.decode(&codec, &pages).expect("rows");
                    let label = format!("{path:?} {name}, {kind}, {dtype:?}");
                    assert!(rows.iter().all(|v| v.is_finite()), "{label}");
                    hold(&label, &codec, &widen(data.elements()), &pages, &rows);
                }
            }
        }
    }
}

/// What the documentation says of tokens that are close to normal.
#[test]
fn normal_tokens_have_the_documented_error() {
    let (dim, chunk) = (128, 64);
    let mut random = Random(5);
    let values: Vec<f32> = (0..8 * chunk * dim).map(|_| random.normal()).collect();
    let starts: Vec<u32> = (0..8).map(|p| p * chunk as u32).collect();
    let stated = [
        ("compat 1", 0.6),
        ("compat 2", 0.35),
        ("tuned 1", 0.69),
        ("tuned 1 keys", 0.6),
        ("tuned 2", 0.325),
        ("tuned 3", 0.175),
        ("tuned 4", 0.09),
    ];
    let keys = ("tuned 1 keys".to_string(), Profile::Tuned.key_scheme(Bits::One));
    for (name, scheme) in named().into_iter().chain([keys]) {
        let codec = codec_of(scheme, dim, chunk);
        let pages = Path::Cpu.encode(&codec, Elements::F32(&values), &starts).expect("pages");
        let restored = Path::Cpu.decode(&codec, &pages).expect("rows");
        let pairs = values.iter().zip(&restored);
        let error = length(pairs.map(|(a, b)| f64::from(a - b)));
        let relative = error / length(values.iter().map(|v| f64::from(*v)));
        println!("{name}: {relative:.4}");
        if let Some((_, most)) = stated.iter().find(|(known, _)| *known == name) {
            assert!(relative <= *most, "{name}: {relative}");
        }
    }
}

/// Keys under the scale that the chunk itself gives, as the default packs them.
#[test]
fn keys_under_their_own_scale_are_finite_and_as_the_judge_says() {
    let (dim, chunk) = (64, 16);
    let chunks = degenerate(chunk, dim);
    let values: Vec<f32> = chunks.iter().flat_map(|(_, values)| values.iter().copied()).collect();
    let data = Elements::F32(&values);
    let starts: Vec<u32> = (0..chunks.len()).map(|p| (p * chunk) as u32).collect();
    let of_page: Vec<u32> = (0..chunks.len() as u32).collect();
    let own = |number: usize| data.slice(number * chunk * dim..(number + 1) * chunk * dim);
    let factors: Vec<f16> = (0..chunks.len())
        .flat_map(|number| key_scale(own(number), dim, chunk).expect("a scale"))
        .collect();
    check_factors(&factors).expect("factors in their range");
    let scales = KeyScales { values: &factors, of_page: &of_page };
    let rates = |profile: Profile| Bits::ALL.map(|bits| (profile, profile.key_scheme(bits)));
    for (profile, scheme) in Profile::ALL.into_iter().flat_map(rates) {
        if scheme.family.rate("bits", scheme.bits.get() as u32).is_err() {
            continue;
        }
        let codec = codec_of(scheme, dim, chunk);
        let words = codec.layout().words();
        for path in PATHS {
            let pages = path.encode_at(&codec, data, &[], &starts, Some(&scales)).expect("pages");
            let restored = path.decode_at(&codec, &pages, &[], Some(&scales)).expect("rows");
            for (number, (kind, _)) in chunks.iter().enumerate() {
                let label = format!("{path:?} {profile:?} {:?}, {kind}", scheme.bits);
                let rows = &restored[number * chunk * dim..][..chunk * dim];
                assert!(rows.iter().all(|v| v.is_finite()), "{label}: a value is not finite");
                // Its mean is one channel of the transform, and rounding an end of the grid.
                if *kind == "signs that alternate along a token" {
                    continue;
                }
                let (page, start) = (&pages[number * words..][..words], &starts[number..=number]);
                let scale = Some(&factors[number * dim..][..dim]);
                judge(&label, &codec, data, start, page, rows, scale, &[])
                    .unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}
