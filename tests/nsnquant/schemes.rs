//! Every combination of a codec's choices, held against the f64 judge.

use half::f16;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use wgkv::judge::codec::{Faults, check, decode, unpack};
use wgkv::judge::widen;
use wgkv::layout::{Bits, PageLayout};
use wgkv::nsnquant::{
    Codebook, Codec, Codes, KeyScales, MeanDomain, Pairing, Profile, Rope, Scheme, cpu, key_scale,
};
use wgkv::shape::{Dtype, Elements};

use crate::common::{PATHS, Path};
use crate::generate::{DTYPES, KINDS, Kind, Random, rows, typed};
use crate::support::schemes::{any_scheme, named};

#[path = "../support/rules.rs"]
mod judge_rules;

use judge_rules::rules;

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

pub fn codec_of(scheme: Scheme, dim: usize, chunk: usize) -> Codec {
    Codec::with("data", dim, scheme, chunk, Codebook::builtin()).expect("a codec")
}

/// Most that a path may be off the judge; see [`Faults`]. Products are rounded to 2^-24 of them.
pub const LIMITS: Faults = Faults { s1: 2e-3, o: 2e-3, s2: 1e-2, codes: 4e-6, grids: 1e-2 };

pub fn within(faults: &Faults) -> bool {
    let (f, l) = (faults, LIMITS);
    f.s1 <= l.s1 && f.o <= l.o && f.s2 <= l.s2 && f.codes <= l.codes && f.grids <= l.grids
}

/// Holds pages against the rows that they were made of and restored rows against the judge's.
pub fn judge(
    label: &str,
    codec: &Codec,
    data: Elements<'_>,
    starts: &[u32],
    pages: &[u32],
    restored: &[f32],
    channels: Option<&[f16]>,
    positions: &[u32],
) -> Result<Faults, String> {
    let (layout, rules) = (codec.layout(), rules(codec));
    let (dim, chunk) = (layout.head_dim(), layout.chunk());
    let book = doubles(codec.book().values());
    let x = widen(data);
    let channels: Option<Vec<f64>> =
        channels.map(|values| values.iter().map(|v| v.to_f64()).collect());
    let mut worst = Faults::default();
    for (number, (page, start)) in pages.chunks_exact(layout.words()).zip(starts).enumerate() {
        let parts = unpack(&rules, page);
        if parts.bytes != layout.data_bytes() {
            return Err(format!("{label}: {} bytes, {}", parts.bytes, layout.data_bytes()));
        }
        let own = &x[*start as usize * dim..][..chunk * dim];
        // Positions of the page's rows; there are none without an embedding.
        let end = (*start as usize + chunk).min(positions.len());
        let places = &positions[end.saturating_sub(chunk)..end];
        let faults = check(&rules, own, &parts, &book, channels.as_deref(), places);
        if !within(&faults) {
            return Err(format!("{label} page {number}: {faults:?}"));
        }
        let (a, b) = (worst, faults);
        worst = Faults {
            s1: a.s1.max(b.s1),
            o: a.o.max(b.o),
            s2: a.s2.max(b.s2),
            codes: a.codes.max(b.codes),
            grids: a.grids.max(b.grids),
        };
        let expected = decode(&rules, &parts, &book, channels.as_deref(), places);
        let ours = &restored[number * chunk * dim..][..chunk * dim];
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            let [s1, s2, o] = &parts.parts;
            let token = i / dim;
            let top = o.iter().fold(0.0, |a: f64, v| a.max(v.abs())) * (dim as f64).sqrt();
            let long = (dim as f64).sqrt() * 4.0;
            let limit = 3e-6 * s1[token] * (s2[token] * long + top) + 1e-38;
            let held = expected.clamp(-3.4e38, 3.4e38);
            if !ours.is_finite() || (f64::from(*ours) - held).abs() > limit {
                return Err(format!("{label} page {number} value {i}: {ours}, not {expected}"));
            }
        }
    }
    Ok(worst)
}

#[derive(Clone, Debug)]
struct Call {
    scheme: Scheme,
    dim: usize,
    chunk: usize,
    dtype: Dtype,
    kind: Kind,
    scaled: bool,
    rope: Option<Rope>,
    seed: u64,
}

/// Embeddings of all or some of the channels.
fn rope(dim: usize, seed: u64) -> Rope {
    let mut random = Random(seed);
    let pairing = Pairing::ALL[random.below(2)];
    let channels = 2 * (1 + random.below(dim / 2));
    let theta = [1.0, 1e4, 5e5][random.below(3)];
    Rope::with_theta(pairing, theta, channels).expect("an embedding")
}

/// Positions of rows: in a run or apart, ascending, anywhere up to 2^24.
fn places(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let step = 1 + random.below(3);
    let mut at = random.below((1 << 24) - 4 * count) as u32;
    let mut next = || {
        at += 1 + random.below(step) as u32;
        at - 1
    };
    (0..count).map(|_| next()).collect()
}

fn call() -> impl Strategy<Value = Call> {
    let dims = vec![8usize, 24, 40, 64, 80, 112, 128];
    let shape = (any_scheme(), prop::sample::select(dims), 2..=80usize);
    let content = (prop::sample::select(DTYPES.to_vec()), prop::sample::select(KINDS.to_vec()));
    (shape, content, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |((scheme, dim, chunk), (dtype, kind), [scaled, turned], seed)| Call {
            scheme,
            dim,
            chunk,
            dtype,
            kind,
            scaled,
            rope: turned.then(|| rope(dim, seed)),
            seed,
        },
    )
}

impl Call {
    fn codec(&self) -> Codec {
        let codec = codec_of(self.scheme, self.dim, self.chunk);
        codec.with_rope(self.rope.clone()).expect("a codec")
    }

    /// Positions of the rows, where the codec wants them.
    fn positions(&self) -> Vec<u32> {
        self.rope.as_ref().map_or(Vec::new(), |_| places(self.chunk + 3, self.seed))
    }
}

/// Positions of the rows of pages that start at these rows.
fn page_places(positions: &[u32], starts: &[u32], chunk: usize) -> Vec<u32> {
    let own = |start: &u32| positions.get(*start as usize..*start as usize + chunk);
    starts.iter().flat_map(|start| own(start).unwrap_or(&[]).to_vec()).collect()
}

fn check_call(call: &Call) -> Result<(), String> {
    let (codec, positions) = (call.codec(), call.positions());
    let mut random = Random(call.seed);
    let values = rows(&mut random, call.kind, call.chunk + 3, call.dim);
    let data = typed(&values, call.dtype);
    let starts = [3, 0];
    let label = format!("{call:?}");
    let fault = |e: wgkv::Error| format!("{label}: {e}");
    let scale = key_scale(data.elements(), call.dim, call.chunk).map_err(fault)?;
    let scales = KeyScales { values: &scale, of_page: &[0, 0] };
    let scales = call.scaled.then_some(&scales);
    let pages = cpu::encode_at(&codec, data.elements(), &positions, &starts, scales);
    let pages = pages.map_err(fault)?;
    let at = page_places(&positions, &starts, call.chunk);
    let restored = cpu::decode_at(&codec, &pages, &at, scales).map_err(fault)?;
    let codes = Codes::unpack(&codec, &pages).map_err(fault)?;
    if codes.pack(&codec).map_err(fault)? != pages {
        return Err(format!("{label}: codes do not pack to the same pages"));
    }
    let channels = call.scaled.then_some(scale.as_slice());
    judge(&label, &codec, data.elements(), &starts, &pages, &restored, channels, &positions)
        .map(|_| ())
}

#[test]
fn every_combination_packs_as_the_judge_says() {
    let config =
        ProptestConfig { cases: 160, source_file: Some(file!()), ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&call(), |call| check_call(&call).map_err(TestCaseError::fail))
        .unwrap_or_else(|e| panic!("{e}"));
}

/// Rows that cancel in the mean leave its rounding, which is that of the rows.
#[test]
fn constant_rows_that_cancel_in_the_mean() {
    let mut scheme = Profile::Compat.scheme(Bits::One);
    scheme.mean = MeanDomain::Hadamard;
    let call = Call {
        scheme,
        dim: 112,
        chunk: 4,
        dtype: Dtype::F32,
        kind: Kind::Constant,
        scaled: false,
        rope: None,
        seed: 9_324_752_319_465_652_328,
    };
    check_call(&call).unwrap_or_else(|e| panic!("{e}"));
}

/// The same on the GPU: its pages are held against the rows, its rows against the pages.
fn check_device(call: &Call) -> Result<(), String> {
    let (codec, positions) = (call.codec(), call.positions());
    let mut random = Random(call.seed);
    let values = rows(&mut random, call.kind, call.chunk + 3, call.dim);
    let data = typed(&values, call.dtype);
    let starts = [3, 0, 2];
    let label = format!("GPU {call:?}");
    let fault = |e: wgkv::Error| format!("{label}: {e}");
    let scale = key_scale(data.elements(), call.dim, call.chunk).map_err(fault)?;
    // The first of two scales is another one.
    let both = [vec![f16::from_f32(0.5); call.dim], scale.clone()].concat();
    let scales = KeyScales { values: &both, of_page: &[1, 1, 1] };
    let scales = call.scaled.then_some(&scales);
    let pages = Path::Gpu.encode_at(&codec, data.elements(), &positions, &starts, scales);
    let pages = pages.map_err(fault)?;
    let at = page_places(&positions, &starts, call.chunk);
    let restored = Path::Gpu.decode_at(&codec, &pages, &at, scales).map_err(fault)?;
    let channels = call.scaled.then_some(scale.as_slice());
    judge(&label, &codec, data.elements(), &starts, &pages, &restored, channels, &positions)
        .map(|_| ())
}

#[test]
fn every_combination_packs_on_the_gpu_as_the_judge_says() {
    // Every case compiles its own shaders.
    let config = ProptestConfig {
        cases: 16,
        max_shrink_iters: 0,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&call(), |call| check_device(&call).map_err(TestCaseError::fail))
        .unwrap_or_else(|e| panic!("{e}"));
}

/// Head dimensions of models beyond 64, 80 and 128, by the profiles that pack real keys.
#[test]
fn tuned_and_paper_pack_heads_of_every_width_of_models() {
    let cases = [
        (96, 3, Pairing::Halves),
        (160, 2, Pairing::Interleaved),
        (192, 1, Pairing::Halves),
        (256, 3, Pairing::Halves),
        (384, 4, Pairing::Interleaved),
    ];
    for (dim, rate, pairing) in cases {
        let rope = Rope::with_theta(pairing, 1e4, dim).expect("an embedding");
        let bits = |rate: usize| Bits::ALL[rate - 1];
        for (scheme, scaled, rope) in [
            (Profile::Tuned.key_scheme(bits(rate)), true, None),
            (Profile::Paper.scheme(bits(rate.min(2))), false, Some(rope)),
        ] {
            let (kind, dtype) = (Kind::Normal, Dtype::F16);
            let call = Call { scheme, dim, chunk: 9, dtype, kind, scaled, rope, seed: dim as u64 };
            check_call(&call).unwrap_or_else(|e| panic!("{e}"));
            check_device(&call).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// Pages of the two paths are the same words but for the choices that rounding decides.
#[test]
fn the_paths_agree_on_nearly_every_page() {
    let cases = named().into_iter().flat_map(|(name, scheme)| {
        [(64, 64), (80, 13), (128, 128)].map(|shape| (name.clone(), scheme, shape, None))
    });
    let turned = [Pairing::Halves, Pairing::Interleaved].into_iter().flat_map(|pairing| {
        let rope = |dim| Some(Rope::with_theta(pairing, 1e4, dim).expect("an embedding"));
        let (paper, tuned) = (Profile::Paper.scheme(Bits::Two), Profile::Tuned.scheme(Bits::Three));
        [
            (format!("paper 2, {pairing:?}"), paper, (128, 64), rope(128)),
            (format!("tuned 3, {pairing:?}"), tuned, (64, 64), rope(48)),
        ]
    });
    for (name, scheme, (dim, chunk), rope) in cases.chain(turned) {
        {
            let codec = codec_of(scheme, dim, chunk).with_rope(rope).expect("a codec");
            let positions = places(12 * chunk, 5);
            let data = typed(&rows(&mut Random(77), Kind::Normal, 12 * chunk, dim), Dtype::F16);
            let starts: Vec<u32> = (0..12).map(|p| p * chunk as u32).collect();
            let [host, device] = PATHS.map(|path| {
                path.encode_at(&codec, data.elements(), &positions, &starts, None).expect("pages")
            });
            let words = codec.layout().words();
            let pairs = host.chunks_exact(words).zip(device.chunks_exact(words));
            let same = pairs.filter(|(a, b)| a == b).count();
            println!("{name}, {dim} x {chunk}: {same} of 12 pages are equal");
            assert!(same >= 10, "{name} {dim} {chunk}: {same} of 12");
        }
    }
}

#[test]
fn bytes_are_those_of_the_specification() {
    let layout = |bits, dim, chunk| {
        PageLayout::with("data", dim, Profile::Tuned.scheme(bits), chunk).expect("a layout")
    };
    for bits in Bits::ALL {
        let layout = layout(bits, 64, 64);
        let metadata = 8 * (layout.data_bytes() - layout.code_bytes());
        assert_eq!(metadata, 8 * 64 + 4 * 64 + 3 * 32, "0.21 bits a value");
        assert_eq!(layout.code_bytes(), 64 * 64 * bits.get() / 8);
        assert_eq!(layout.words() * 4, layout.data_bytes());
        assert_eq!(layout.pieces() * layout.index_bits() % 32, 0, "tokens are whole words");
    }
    for (bits, average) in [(Bits::Two, 2.238), (Bits::One, 1.238)] {
        let scheme = Profile::Paper.scheme(bits);
        let layout = PageLayout::with("data", 128, scheme, 64).expect("a layout");
        let got = 8.0 * layout.data_bytes() as f64 / (64.0 * 128.0);
        assert!((got - average).abs() < 5e-4, "{got}");
        assert_eq!(layout.words() * 4, layout.data_bytes());
    }
    // 40 pieces of 6 bits a token: whole bytes, and words for 4 tokens.
    let odd = layout(Bits::Three, 80, 5);
    assert_eq!((odd.plane_words(), odd.code_bytes()), (38, 150));
    let mut page = vec![0; odd.words()];
    for piece in 0..5 * 40 {
        odd.set_index(&mut page, piece, (piece * 37 % 64) as u8);
    }
    for piece in 0..5 * 40 {
        assert_eq!(usize::from(odd.index(&page, piece)), piece * 37 % 64);
    }
    assert!(page[odd.plane_words()..].iter().all(|word| *word == 0));
}

#[test]
fn named_profiles_are_what_they_say() {
    let compat = Codec::new(
        PageLayout::new("data", 64, Bits::Two, 64).expect("a layout"),
        Codebook::builtin(),
    );
    let compat = compat.expect("a codec");
    assert_eq!(compat.scheme(), Profile::Compat.scheme(Bits::Two));
    let error =
        Codec::with("data", 64, Profile::Compat.scheme(Bits::Three), 64, Codebook::builtin());
    assert!(matches!(error, Err(wgkv::Error::OutOfRange { argument: "bits", got: 3, max: 2, .. })));
}
