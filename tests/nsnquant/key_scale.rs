//! The fixing of key scales, on both paths and by the judge.

use half::f16;
use wgkv::gpu::Slice;
use wgkv::judge::codec;
use wgkv::judge::widen;
use wgkv::layout::Bits;
use wgkv::nsnquant::{KeyScales, Profile, cpu, gpu, key_scale};
use wgkv::shape::Elements;

use crate::common::{Data, steps};
use crate::generate::{DTYPES, KINDS, Kind, Random, rows, typed};
use crate::schemes::codec_of;
use crate::support::{context, run, wait};

/// The scales of heads on the device, `[heads, dim]`.
fn on_device(data: &Data, dim: usize, chunk: usize, heads: &[core::ops::Range<usize>]) -> Vec<f16> {
    let context = context();
    let rows = context.upload("rows", data.elements().bytes()).expect("a buffer");
    let out = context.create("scales", (2 * heads.len() * dim) as u64).expect("a buffer");
    let readback = run(|rec| {
        let (data, dtype) = (Slice::all(&rows), data.elements().dtype());
        gpu::key_scale(rec, dim, chunk, data, dtype, heads, Slice::all(&out))?;
        rec.read_back(Slice::all(&out))
    });
    bytemuck::pod_collect_to_vec(&wait(readback.expect("scales")))
}

/// Both paths are within one step of f16 of each other and of the judge.
#[test]
fn scales_are_those_of_the_judge_on_both_paths() {
    let mut random = Random(41);
    for (dim, chunk) in [(8, 2), (64, 64), (80, 13), (128, 17), (512, 8)] {
        for (kind, dtype) in KINDS.into_iter().zip(DTYPES.into_iter().cycle()) {
            let data = typed(&rows(&mut random, kind, 9 * chunk + 5, dim), dtype);
            let heads = [0..9 * chunk + 5, 3..3 + chunk, 1..2, 4..4, 2..chunk + 3];
            let device = on_device(&data, dim, chunk, &heads);
            for (head, device) in heads.into_iter().zip(device.chunks(dim)) {
                let part = data.elements().slice(head.start * dim..head.end * dim);
                let host = key_scale(part, dim, chunk).expect("a scale");
                let wanted = codec::key_scale(&widen(part), dim, chunk);
                let label = format!("{dim} x {chunk}, {kind:?} {dtype:?} {head:?}");
                for ((host, device), wanted) in host.iter().zip(device).zip(&wanted) {
                    let wanted = f16::from_f64(*wanted).to_bits();
                    let apart = [host, device].map(|v| steps(v.to_bits(), wanted));
                    let both = steps(host.to_bits(), device.to_bits());
                    assert!(apart[0].max(apart[1]).max(both) <= 1, "{label}: {host} {device}");
                }
            }
        }
    }
}

#[test]
fn a_scale_evens_out_channels_and_is_1_without_tokens() {
    let (dim, chunk) = (64, 16);
    let mut values = rows(&mut Random(8), Kind::Normal, 400, dim);
    values.chunks_exact_mut(dim).for_each(|row| row[7] *= 16.0);
    let scale = |tokens: usize| {
        key_scale(Elements::F32(&values[..tokens * dim]), dim, chunk).expect("a scale")
    };
    assert!(scale(0).iter().all(|v| *v == f16::ONE));
    assert!(scale(1).iter().all(|v| *v == f16::ONE), "one token is all mean");
    let full = scale(400);
    assert_eq!(full, scale(8 * chunk), "later tokens change it");
    let ratio = full[7].to_f32() / full[8].to_f32();
    assert!((2.7..4.0).contains(&ratio), "{ratio}: below the root of 16, for the prior");
    let few = scale(3)[7].to_f32() / scale(3)[8].to_f32();
    assert!(few > 1.0 && few < ratio, "{few}");
    assert!(key_scale(Elements::F32(&[0.0; 640]), dim, chunk).expect("a scale")[0] == f16::ONE);
    assert!(key_scale(Elements::F32(&[0.0; 63]), dim, chunk).is_err());

    let codec = codec_of(Profile::Tuned.scheme(Bits::Two), dim, chunk);
    let bad = |values: &[f16], of_page: &[u32]| {
        let scales = KeyScales { values, of_page };
        cpu::decode_scaled(&codec, &vec![0; codec.layout().words()], Some(&scales)).is_err()
    };
    let one = vec![f16::ONE; dim];
    assert!(!bad(&one, &[0]));
    assert!(bad(&one, &[1]) && bad(&one, &[]) && bad(&one[1..], &[0]));
    assert!(bad(&vec![f16::NAN; dim], &[0]) && bad(&vec![f16::ZERO; dim], &[0]));
}
