//! Incoming rows: device and host equal bit for bit, in every pair of types.

use wgkv::cache::pool::Write;
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::PageClass;
use wgkv::shape::{Dtype, Elements};

use crate::pages::{Both, Numbers, layout, with_list};
use crate::rows::words;
use crate::support;

pub fn elements(words: &[u32], dtype: Dtype) -> Elements<'_> {
    match dtype {
        Dtype::F32 => Elements::F32(bytemuck::cast_slice(words)),
        Dtype::F16 => Elements::F16(bytemuck::cast_slice(words)),
        Dtype::Bf16 => Elements::Bf16(bytemuck::cast_slice(words)),
    }
}

fn compare(class: PageClass, dims: [usize; 2], from: Dtype, raw: Dtype) {
    const ROWS: u32 = 70;
    let layout = layout(dims, [2, 1], 16, 5);
    let mut numbers = Numbers::new(dims[0] as u64);
    let mut both = Both::new(&layout, class, || numbers.word());
    let cap = layout.rows(class) as u32;
    let mut list = Vec::new();
    for (index, page) in both.pages(&layout).into_iter().enumerate() {
        let slot = numbers.below(cap);
        let rows = [1, cap, numbers.below(cap + 3), 0][index % 4];
        let position = numbers.word();
        list.push(Write { page, slot, rows, source: numbers.below(ROWS + 3), position });
    }
    for page in both.missing(&layout) {
        list.push(Write { page, slot: 0, rows: cap, source: 0, position: 7 });
    }
    // Tensors of ordinary, huge, tiny and non-finite elements.
    let data = [0, 1].map(|side| {
        let count = ROWS as usize * dims[side] * from.bytes() / 4;
        words(count, 5 + side as u64)
    });
    let context = support::context();
    let buffers =
        data.each_ref().map(|words| context.upload("rows", bytemuck::cast_slice(words)).unwrap());
    let [keys, values] = buffers.each_ref().map(Slice::all);
    let incoming = gpu::IncomingRows { keys, values, dtype: from };
    with_list(&list, |rec, list| {
        both.slabs()
            .iter()
            .try_for_each(|to| gpu::write::record(rec, &layout, list, to, raw, ROWS, &incoming))
    });
    let [keys, values] = data.each_ref().map(|words| elements(words, from));
    let rows = cpu::IncomingRows { keys, values };
    cpu::write::write(&layout, class, &list, raw, &rows, &mut both.host);
    both.check();
}

#[test]
fn device_equals_host() {
    let types = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    for from in types {
        for raw in [Dtype::F16, Dtype::Bf16] {
            compare(PageClass::Raw, [64, 32], from, raw);
        }
    }
    compare(PageClass::Sink, [80, 112], Dtype::F32, Dtype::F16);
    compare(PageClass::Raw, [256, 8], Dtype::F16, Dtype::F16);
}

#[test]
fn short_tensors_are_refused() {
    let layout = layout([64, 32], [2, 2], 16, 0);
    let mut numbers = Numbers::new(1);
    let both = Both::new(&layout, PageClass::Raw, || numbers.word());
    let context = support::context();
    let buffer = context.create("rows", 10 * 64 * 2).unwrap();
    let rows = Slice::all(&buffer);
    let list = gpu::List { words: rows, first: 0, count: 1 };
    let incoming = gpu::IncomingRows { keys: rows, values: rows, dtype: Dtype::F16 };
    let record = |rows, list: &gpu::List<'_>| {
        let to = both.slabs()[0];
        support::run(|rec| gpu::write::record(rec, &layout, list, &to, Dtype::F16, rows, &incoming))
    };
    assert!(record(10, &list).is_ok());
    assert!(matches!(record(11, &list), Err(wgkv::Error::Length { argument: "keys", .. })));
    let long = gpu::List { count: 65, ..list };
    assert!(matches!(record(10, &long), Err(wgkv::Error::Length { argument: "list", .. })));
}
