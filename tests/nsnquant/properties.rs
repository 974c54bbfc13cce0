//! Rules that hold for every input, on both paths.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use wgkv::nsnquant::cpu;
use wgkv::shape::Dtype;

use crate::common::{Data, PATHS, Path, codec, decode_on};
use crate::compare::{report, same_pages};
use crate::generate::{DTYPES, KINDS, Kind, Random, rows, typed};
use crate::support::context;

/// Every shape of head dimension: powers of two, and each order times a short and a long run.
const DIMS: [usize; 16] = [8, 16, 24, 32, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];

/// A call of the encoder: chunks that lie anywhere among the rows and may overlap.
#[derive(Clone, Debug)]
struct Call {
    dim: usize,
    bits: u32,
    chunk: usize,
    dtype: Dtype,
    kind: Kind,
    pages: usize,
    seed: u64,
}

impl Call {
    fn data(&self) -> (Data, Vec<u32>) {
        let mut random = Random(self.seed);
        let total = self.chunk + random.below(2 * self.chunk);
        let values = rows(&mut random, self.kind, total, self.dim);
        let last = total - self.chunk;
        let starts = (0..self.pages).map(|_| random.below(last + 1) as u32).collect();
        (typed(&values, self.dtype), starts)
    }
}

fn call() -> impl Strategy<Value = Call> {
    let shape = (prop::sample::select(vec![24usize, 64, 80, 128]), 1..=2u32, 2..=128usize);
    let content = (prop::sample::select(DTYPES.to_vec()), prop::sample::select(KINDS.to_vec()));
    (shape, content, 1..4usize, any::<u64>()).prop_map(
        |((dim, bits, chunk), (dtype, kind), pages, seed)| Call {
            dim,
            bits,
            chunk,
            dtype,
            kind,
            pages,
            seed,
        },
    )
}

/// Encodes and decodes on both paths and compares.
fn check(call: &Call) -> Result<(), String> {
    let codec = codec(call.dim, call.bits, call.chunk);
    let (data, starts) = call.data();
    let label = format!("{call:?}");
    let fault = |e: wgkv::Error| format!("{label}: {e}");
    let reference = cpu::encode(&codec, data.elements(), &starts).map_err(fault)?;
    let pages = Path::Gpu.encode(&codec, data.elements(), &starts).map_err(fault)?;
    same_pages(&label, &codec, data.elements(), &starts, &pages, &reference)?;

    let expected = cpu::decode(&codec, &reference).map_err(fault)?;
    let restored = Path::Gpu.decode(&codec, &reference).map_err(fault)?;
    for (i, (ours, theirs)) in restored.iter().zip(&expected).enumerate() {
        let (row, channel) = (i / call.dim, i % call.dim);
        let page = &reference[row / call.chunk * codec.layout().words()..];
        let token = row % call.chunk;
        let (s1, s2) = (codec.s1(page, token), codec.s2(page, token));
        let o = codec.o(page, channel).abs();
        let limit = f64::from(s1) * f64::from(s2 * (call.dim as f32).sqrt() + o) * 1e-6;
        if !ours.is_finite() || (f64::from(*ours) - f64::from(*theirs)).abs() > limit {
            return Err(format!("{label}: value {i} is {ours}, on the CPU {theirs}"));
        }
    }
    Ok(())
}

#[test]
fn gpu_pages_and_rows_equal_those_of_the_cpu() {
    let config =
        ProptestConfig { cases: 48, source_file: Some(file!()), ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&call(), |call| check(&call).map_err(TestCaseError::fail))
        .unwrap_or_else(|e| panic!("{e}"));
    report();
}

#[test]
fn every_head_dimension_and_rate_agrees() {
    for (i, dim) in DIMS.into_iter().enumerate() {
        for bits in [1, 2] {
            let kind = if i % 2 == 0 { Kind::Normal } else { Kind::Mixed };
            let dtype = DTYPES[i % 3];
            let call = Call { dim, bits, chunk: 13, dtype, kind, pages: 2, seed: i as u64 };
            check(&call).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    report();
}

#[test]
fn long_chunks_agree() {
    for (dim, chunk) in [(8, 1024), (128, 1000), (512, 300)] {
        let call =
            Call { dim, bits: 2, chunk, dtype: Dtype::F16, kind: Kind::Normal, pages: 2, seed: 77 };
        check(&call).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Bits of a non-finite number of each type, one of several.
fn spoil(data: &mut Data, index: usize, which: usize) {
    match data {
        Data::F32(x) => {
            let bits = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7f80_0000, 0xff80_0000];
            x[index] = f32::from_bits(bits[which]);
        }
        Data::F16(x) => {
            x[index] = f16::from_bits([0x7e00, 0xfe00, 0x7c01, 0x7c00, 0xfc00][which]);
        }
        Data::Bf16(x) => {
            x[index] = bf16::from_bits([0x7fc0, 0xffc0, 0x7f81, 0x7f80, 0xff80][which]);
        }
    }
}

fn clear(data: &mut Data, index: usize) {
    match data {
        Data::F32(x) => x[index] = 0.0,
        Data::F16(x) => x[index] = f16::ZERO,
        Data::Bf16(x) => x[index] = bf16::ZERO,
    }
}

#[test]
fn a_non_finite_element_counts_as_zero_and_spoils_no_neighbour() {
    let (dim, chunk) = (64, 16);
    for dtype in DTYPES {
        for bits in [1, 2] {
            let codec = codec(dim, bits, chunk);
            let mut random = Random(5);
            let values = rows(&mut random, Kind::Normal, 3 * chunk, dim);
            let (mut spoilt, mut cleared) = (typed(&values, dtype), typed(&values, dtype));
            for which in 0..5 {
                let index = chunk * dim + random.below(chunk * dim);
                spoil(&mut spoilt, index, which);
                clear(&mut cleared, index);
            }
            let starts = [0, chunk as u32, 2 * chunk as u32];
            for path in PATHS {
                let pages = path.encode(&codec, spoilt.elements(), &starts).expect("pages");
                let clean = path.encode(&codec, cleared.elements(), &starts).expect("pages");
                assert_eq!(pages, clean, "{path:?} {dtype:?} {bits}");
                let restored = path.decode(&codec, &pages).expect("rows");
                assert!(restored.iter().all(|v| v.is_finite()), "{path:?} {dtype:?}");
            }
        }
    }
}

#[test]
fn a_chunk_depends_on_its_own_tokens_only() {
    let (dim, chunk) = (80, 24);
    for bits in [1, 2] {
        let codec = codec(dim, bits, chunk);
        let words = codec.layout().words();
        let mut random = Random(9);
        let values = rows(&mut random, Kind::Mixed, 4 * chunk, dim);
        let whole = Data::F32(values.clone());
        let starts = [2 * chunk as u32, 0, chunk as u32, 3 * chunk as u32];
        for path in PATHS {
            let pages = path.encode(&codec, whole.elements(), &starts).expect("pages");
            for (page, start) in pages.chunks_exact(words).zip(starts) {
                let from = start as usize * dim;
                let own = Data::F32(values[from..from + chunk * dim].to_vec());
                let alone = path.encode(&codec, own.elements(), &[0]).expect("a page");
                assert_eq!(page, alone, "{path:?} chunk at {start}");
            }
        }
    }
}

/// |x^ - x| is at most `2 s1 s2 sqrt(d)`, the codes' own bound, plus what the rounding of the
/// scales and means adds; normal rows come back far closer.
#[test]
fn what_is_restored_lies_within_the_stated_error() {
    let (dim, chunk) = (128, 32);
    for bits in [1u32, 2] {
        for kind in KINDS {
            let codec = codec(dim, bits, chunk);
            let mut random = Random(11);
            let values = rows(&mut random, kind, 2 * chunk, dim);
            let data = Data::F32(values.clone());
            for path in PATHS {
                let starts = [0, chunk as u32];
                let pages = path.encode(&codec, data.elements(), &starts).expect("pages");
                let restored = path.decode(&codec, &pages).expect("rows");
                let (mut error, mut size) = (0.0, 0.0);
                for (page, start) in starts.iter().enumerate() {
                    let known = cpu::analyse(&codec, data.elements(), *start).expect("a chunk");
                    for t in 0..chunk {
                        let at = (page * chunk + t) * dim;
                        let norm = |f: &dyn Fn(usize) -> f64| {
                            (at..at + dim).map(|i| f(i).powi(2)).sum::<f64>().sqrt()
                        };
                        let x = norm(&|i| f64::from(values[i]));
                        let e = norm(&|i| f64::from(restored[i]) - f64::from(values[i]));
                        let root = (dim as f64).sqrt();
                        let codes = 2.0 * f64::from(known.s1[t]) * f64::from(known.s2[t]) * root;
                        let bound = codes * 1.01 + x * 0.01 + 6e-8 * root * 3.0;
                        assert!(e <= bound, "{path:?} {bits} {kind:?} {t}: {e} above {bound}");
                        error += (e / f64::from(known.s1[t])).powi(2);
                        size += (x / f64::from(known.s1[t])).powi(2);
                    }
                }
                let relative = (error / size).sqrt();
                println!("{path:?} {bits} bits {kind:?}: relative error {relative:.4}");
                // The rate's own error; rows of equal channels turn to spikes, which no book of
                // normal pieces serves, and tiny ones lie below the smallest scale.
                if matches!(kind, Kind::Normal | Kind::Outliers | Kind::SomeZero | Kind::Huge) {
                    let most = if bits == 1 { 0.62 } else { 0.37 };
                    assert!(relative <= most, "{path:?} {bits} {kind:?}: {relative}");
                }
            }
        }
    }
}

#[test]
fn narrow_outputs_are_the_rounded_ones_and_saturate() {
    let (dim, chunk) = (64, 8);
    let codec = codec(dim, 2, chunk);
    for kind in [Kind::Normal, Kind::Huge] {
        let values = rows(&mut Random(3), kind, chunk, dim);
        let pages = Path::Cpu.encode(&codec, typed(&values, Dtype::F32).elements(), &[0]);
        let pages = pages.expect("a page");
        let wide = Path::Gpu.decode(&codec, &pages).expect("rows");
        let halves: Vec<u16> = bytemuck::pod_collect_to_vec(
            &decode_on(context(), &codec, &pages, Dtype::F16).expect("rows"),
        );
        let brains: Vec<u16> = bytemuck::pod_collect_to_vec(
            &decode_on(context(), &codec, &pages, Dtype::Bf16).expect("rows"),
        );
        for (i, value) in wide.iter().enumerate() {
            let half = f16::from_f32(value.clamp(-65504.0, 65504.0));
            assert_eq!(halves[i], half.to_bits(), "{kind:?} {i}");
            assert_eq!(brains[i], bf16::from_f32(*value).to_bits(), "{kind:?} {i}");
        }
    }
}

#[cfg(feature = "parallel")]
#[test]
fn the_number_of_threads_does_not_show() {
    let codec = codec(96, 2, 16);
    let values = rows(&mut Random(4), Kind::Mixed, 40 * 16, 96);
    let data = typed(&values, Dtype::F32);
    let starts: Vec<u32> = (0..40).map(|p| p * 16).collect();
    let [one, three] = [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let pages = cpu::encode(&codec, data.elements(), &starts).expect("pages");
            let restored = cpu::decode(&codec, &pages).expect("rows");
            (pages, restored)
        })
    });
    assert!(one == three);
}
