//! The squares of channels on both paths.

use wgkv::gpu::Slice;
use wgkv::nsnquant::cpu;
use wgkv::nsnquant::gpu::{self, Part};
use wgkv::shape::Dtype;

use crate::generate::{Kind, Random, rows, typed};
use crate::support::{context, run, wait};

#[test]
fn both_paths_add_up_the_same_squares() {
    let (dim, total) = (80, 150);
    let data = typed(&rows(&mut Random(51), Kind::Normal, total, dim), Dtype::F16);
    let chunks = [[0, 64], [64, 64], [128, 22], [7, 1], [9, 0], [149, 1]];
    let host = cpu::squares(data.elements(), dim, &chunks).expect("squares");
    // Entries beyond the data and beyond the result are ignored.
    let mut list: Vec<[u32; 3]> =
        chunks.iter().zip(0..).map(|([first, count], row)| [first * 40, *count, row]).collect();
    list.extend([[149 * 40, 2, 0], [u32::MAX, 1, 1], [0, 3, 6], [0, 3, u32::MAX]]);
    let context = context();
    let bytes = data.elements().bytes();
    let rows = context.upload("rows", bytes).expect("a buffer");
    let words = context.upload("list", bytemuck::cast_slice(&list)).expect("a buffer");
    let out = context.create("squares", 4 * host.len() as u64).expect("a buffer");
    let readback = run(|rec| {
        let part = Part { words: Slice::all(&words), first: 0, count: list.len() as u32 };
        gpu::squares(rec, dim, Slice::all(&rows), Dtype::F16, part, Slice::all(&out))?;
        rec.read_back(Slice::all(&out))
    });
    let device: Vec<f32> = bytemuck::pod_collect_to_vec(&wait(readback.expect("squares")));
    for (at, (host, device)) in host.iter().zip(&device).enumerate() {
        assert!((host - device).abs() <= 2e-6 * host + 1e-10, "{at}: {host} {device}");
    }
    assert!(cpu::squares(data.elements(), dim, &[[149, 2]]).is_err());
}
