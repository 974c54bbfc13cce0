//! What the codec refuses, and how it names it.

use wgkv::Error;
use wgkv::gpu::Slice;
use wgkv::nsnquant::gpu::{self, DeviceCodec};
use wgkv::nsnquant::{Codes, assigned_avg_bits, cpu};
use wgkv::shape::{Dtype, Elements};

use crate::common::codec;
use crate::support::{context, run};

#[test]
fn chunks_outside_the_rows_and_broken_rows_are_refused() {
    let codec = codec(16, 2, 4);
    let data = vec![0.0f32; 10 * 16];
    let outside = cpu::encode(&codec, Elements::F32(&data), &[0, 7]).expect_err("outside");
    assert!(matches!(outside, Error::Offsets { argument: "starts", index: 1, got: 7, .. }));
    let broken = cpu::encode(&codec, Elements::F32(&data[1..]), &[0]).expect_err("broken");
    assert!(matches!(broken, Error::Length { argument: "data", got: 159, expected: 160 }));
    let words = codec.layout().words();
    let short = cpu::decode(&codec, &vec![0; words + 1]).expect_err("no whole page");
    assert!(matches!(short, Error::Length { argument: "pages", .. }));
    assert!(cpu::encode(&codec, Elements::F32(&[]), &[]).expect("no pages").is_empty());
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let codec = codec(16, 2, 4);
    let page = cpu::encode(&codec, Elements::F32(&[1.0; 64]), &[0]).expect("a page");
    let codes = Codes::unpack(&codec, &page).expect("a page");
    let unsigned = Codes { signs: None, ..codes.clone() };
    assert!(matches!(unsigned.pack(&codec), Err(Error::Length { argument: "signs", .. })));
    let short = Codes { idx: codes.idx[1..].to_vec(), ..codes };
    assert!(matches!(short.pack(&codec), Err(Error::Length { argument: "idx", .. })));
}

#[test]
fn slices_that_are_too_short_are_refused_before_anything_is_recorded() {
    let context = context();
    let codec = codec(16, 2, 4);
    let words = codec.layout().words() as u64 * 4;
    let device = DeviceCodec::new(context, codec).expect("a codec");
    let buffer = |bytes| context.create("test", bytes).expect("a buffer");
    let (data, starts, pages) = (buffer(10 * 16 * 4), buffer(8), buffer(2 * words));
    let all = |b| Slice::all(b);
    let encode = |total, count, data: &wgkv::wgpu::Buffer, pages: &wgkv::wgpu::Buffer| {
        run(|rec| {
            let data = Slice::all(data);
            gpu::encode(rec, &device, data, Dtype::F32, total, all(&starts), count, pages.into())
        })
    };
    encode(10, 2, &data, &pages).expect("whole pages");
    encode(0, 0, &data, &pages).expect("nothing to do");
    let few = encode(3, 1, &data, &pages);
    assert!(matches!(few, Err(Error::OutOfRange { argument: "token rows", got: 3, .. })));
    let short = encode(11, 2, &data, &pages);
    assert!(matches!(short, Err(Error::Length { argument: "data", .. })));
    let starts_short = encode(10, 3, &data, &buffer(3 * words));
    assert!(matches!(starts_short, Err(Error::Length { argument: "starts", .. })));
    let out_short = encode(10, 2, &data, &buffer(words));
    assert!(matches!(out_short, Err(Error::Length { argument: "out", .. })));
    let rows_short = run(|rec| {
        let (pages, out) = (all(&pages), all(&data));
        gpu::decode(rec, &device, pages, 2, all(&starts), out, Dtype::F32, 11)
    });
    assert!(matches!(rows_short, Err(Error::Length { argument: "out", .. })));
}

#[test]
fn bits_per_value_count_scales_and_means() {
    for (dim, bits, chunk, expected) in
        [(64, 2, 64, 2.75), (128, 2, 64, 2.5), (128, 1, 64, 1.5), (128, 1, 128, 1.375)]
    {
        let codec = codec(dim, bits, chunk);
        let layout = codec.layout();
        assert_eq!(assigned_avg_bits(layout, layout, chunk), expected);
        assert_eq!(assigned_avg_bits(layout, layout, 0), 16.0);
    }
}
