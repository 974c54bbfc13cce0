//! Failures that other projects met, tried here.

use std::collections::BTreeSet;

use half::{bf16, f16};
use wgkv::gpu::{Context, ContextDescriptor};
use wgkv::nsnquant::Codes;
use wgkv::wgpu;

use crate::common::{Data, PATHS, Path, codec, encode_on};
use crate::compare::same_pages;
use crate::generate::{Kind, Random, rows, typed};
use crate::support::context;

/// A stored scale, read without the library's routine: an f16, or with the sign bit a bf16.
fn stored_scale(bits: u16) -> f64 {
    let magnitude = i32::from(bits & 0x7fff);
    if bits & 0x8000 != 0 {
        let exponent = (magnitude >> 7) - 127;
        return (1.0 + f64::from(magnitude & 0x7f) / 128.0) * 2f64.powi(exponent);
    }
    let (exponent, mantissa) = (magnitude >> 10, f64::from(magnitude & 0x3ff) / 1024.0);
    assert!(exponent < 31, "an infinite scale");
    if exponent == 0 {
        mantissa * 2f64.powi(-14)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent - 15)
    }
}

/// Overflow and underflow in the scales: rows whose norms stand at the two ends of f16.
#[test]
fn scales_at_both_ends_of_f16_survive() {
    let (dim, scales) = (64, [1e-7f32, 6e-8, 5e-5, 6.1e-5, 1.0, 65504.0, 65520.0, 3e38]);
    for bits in [1, 2] {
        let codec = codec(dim, bits, scales.len());
        let mut random = Random(21);
        let signs: Vec<f32> =
            (0..scales.len() * dim).map(|_| random.bits() as i64 as f32).collect();
        let wide: Vec<f32> =
            signs.iter().enumerate().map(|(i, s)| scales[i / dim].copysign(*s)).collect();
        let brain: Vec<bf16> = wide.iter().map(|v| bf16::from_f32(*v)).collect();
        for data in [Data::F32(wide), Data::Bf16(brain)] {
            let read: Vec<f64> =
                (0..scales.len() * dim).map(|i| f64::from(data.elements().get(i))).collect();
            let stored: Vec<Vec<u16>> = PATHS
                .iter()
                .map(|path| {
                    let pages = path.encode(&codec, data.elements(), &[0]).expect("a page");
                    let s1 = Codes::unpack(&codec, &pages).expect("a page").s1;
                    let restored = path.decode(&codec, &pages).expect("rows");
                    for (t, bits) in s1.iter().enumerate() {
                        let scale = read[t * dim].abs();
                        let error = (stored_scale(*bits) - scale).abs();
                        let allowed = if scale > 65504.0 {
                            scale * 2f64.powi(-8)
                        } else {
                            (scale * 2f64.powi(-11)).max(2f64.powi(-25))
                        };
                        assert!(error <= allowed * 1.001, "{path:?} s1 of {scale}: off by {error}");
                        let square = |f: &dyn Fn(usize) -> f64| -> f64 {
                            (t * dim..(t + 1) * dim).map(|i| (f(i) / scale).powi(2)).sum()
                        };
                        let off = square(&|i| f64::from(restored[i]) - read[i]).sqrt();
                        let size = square(&|i| read[i]).sqrt();
                        let codes = if codec.layout().bits().get() == 1 { 0.75 } else { 0.5 };
                        let limit = codes * size + allowed / scale * 2.0 * size;
                        assert!(off <= limit, "{path:?} row of {scale}: {off} above {limit}");
                    }
                    s1
                })
                .collect();
            assert!(stored.iter().all(|s1| *s1 == stored[0]), "the paths store other scales");
        }
    }
}

/// bf16 bits read as f16, or the reverse: values that all three types hold exactly.
#[test]
fn equal_values_in_three_types_give_equal_pages() {
    let (dim, chunk) = (128, 16);
    let mut random = Random(7);
    let values: Vec<f32> =
        (0..3 * chunk * dim).map(|_| (random.normal() * 48.0).round() / 64.0).collect();
    let half: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
    let brain: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
    for (i, value) in values.iter().enumerate() {
        assert_eq!((half[i].to_f32(), brain[i].to_f32()), (*value, *value), "not exact");
    }
    let starts = [0, 16, 32];
    for path in PATHS {
        for bits in [1, 2] {
            let codec = codec(dim, bits, chunk);
            let pages =
                [Data::F32(values.clone()), Data::F16(half.clone()), Data::Bf16(brain.clone())]
                    .map(|data| path.encode(&codec, data.elements(), &starts).expect("pages"));
            assert!(pages[0] == pages[1] && pages[0] == pages[2], "{path:?} {bits}");
        }
        let codec = codec(8, 2, 2);
        let data = Data::Bf16(vec![bf16::from_bits(0x3e25); 16]);
        let pages = path.encode(&codec, data.elements(), &[0]).expect("a page");
        let s1 = Codes::unpack(&codec, &pages).expect("a page").s1;
        assert!((stored_scale(s1[0]) - 0.1611).abs() < 1e-3, "{path:?} {}", s1[0]);
    }
}

/// Rows of codes that are no multiple of 4 bytes: no thread may lose another's bits.
#[test]
fn rows_of_10_and_14_code_bytes_are_packed_alike_each_time() {
    let (sequences, heads) = (2, 3);
    for dim in [80, 112] {
        for bits in [1, 2] {
            for chunk in [64, 128] {
                let codec = codec(dim, bits, chunk);
                let total = sequences * heads * chunk;
                let values = rows(&mut Random(dim as u64), Kind::Normal, total, dim);
                let data = typed(&values, wgkv::shape::Dtype::F16);
                let starts: Vec<u32> = (0..total / chunk).map(|p| (p * chunk) as u32).collect();
                let reference = Path::Cpu.encode(&codec, data.elements(), &starts).expect("pages");
                let runs: BTreeSet<Vec<u32>> = (0..20)
                    .map(|_| Path::Gpu.encode(&codec, data.elements(), &starts).expect("pages"))
                    .collect();
                let label = format!("dim {dim}, {bits} bits, chunk {chunk}");
                assert_eq!(runs.len(), 1, "{label}: runs differ");
                for pages in &runs {
                    same_pages(&label, &codec, data.elements(), &starts, pages, &reference)
                        .unwrap_or_else(|e| panic!("{e}"));
                }
            }
        }
    }
}

/// A device of the WebGPU baseline, with nothing asked for beyond it.
#[test]
fn the_baseline_device_packs_the_same_pages() {
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            flags: wgpu::InstanceFlags::VALIDATION,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .expect("an adapter");
    let descriptor =
        wgpu::DeviceDescriptor { required_limits: wgpu::Limits::default(), ..Default::default() };
    let (device, queue) =
        pollster::block_on(adapter.request_device(&descriptor)).expect("a device");
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let baseline = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    for (dim, bits) in [(80, 2), (112, 1), (512, 2), (8, 1)] {
        let codec = codec(dim, bits, 64);
        let values = rows(&mut Random(2), Kind::Normal, 192, dim);
        let data = typed(&values, wgkv::shape::Dtype::F16);
        let starts = [0, 64, 128];
        let pages = encode_on(&baseline, &codec, data.elements(), &starts).expect("pages");
        let same = encode_on(context(), &codec, data.elements(), &starts).expect("pages");
        assert_eq!(pages, same, "dim {dim}");
    }
    let complaint = pollster::block_on(scope.pop());
    assert!(complaint.is_none(), "{complaint:?}");
}
