//! Rows of pages into dense tensors: device and host equal bit for bit.

use wgkv::cache::{FILL_ROWS, FetchRows, cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::shape::Dtype;

use crate::pages::{Both, Numbers, layout, with_list};
use crate::rows::words;
use crate::support;

fn compare(class: PageClass, raw: Dtype, dtype: Dtype, wanted: [bool; 3]) {
    let layout = layout([64, 80], [2, 1], 16, 5);
    let mut numbers = Numbers::new(9);
    let mut odd = words(1 << 16, 3).into_iter();
    let both = Both::new(&layout, class, || odd.next().unwrap_or(17));
    let pages = both.pages(&layout);
    let cap = layout.rows(class) as u32;
    let mut list: Vec<FetchRows> = (0..)
        .zip(pages.iter().rev())
        .map(|(index, &from)| FetchRows {
            from,
            to: cap * index,
            rows: numbers.below(cap + 1),
            scale: 0,
        })
        .collect();
    let end = cap * pages.len() as u32;
    let rows = (end + 300) as usize;
    for from in both.missing(&layout) {
        list.push(FetchRows { from, to: 0, rows: 3, scale: 0 });
    }
    list.push(FetchRows { from: pages[0], to: rows as u32 - 2, rows: cap, scale: 0 });
    let rest = [
        FetchRows { from: PageId::NONE, to: end, rows: FILL_ROWS, scale: 0 },
        FetchRows { from: PageId::NONE, to: end + FILL_ROWS, rows: 10, scale: 0 },
    ];
    let size = |side: usize| rows * layout.head_dims()[side] * dtype.bytes() / 4;
    let mut host = [words(size(0), 1), words(size(1), 2), words(rows, 3)];
    for (words, wanted) in host.iter_mut().zip(wanted) {
        if !wanted {
            words.clear();
        }
    }
    let context = support::context();
    let out =
        host.each_ref().map(|words| context.upload("out", bytemuck::cast_slice(words)).unwrap());
    let slices = [0, 1, 2].map(|part| wanted[part].then(|| Slice::all(&out[part])));
    let [keys, values, positions] = slices;
    let to = gpu::fetch::Target { keys, values, positions, rows, dtype };
    with_list(&list, |rec, list| {
        both.slabs()
            .iter()
            .try_for_each(|slab| gpu::fetch::record(rec, &layout, list, raw, Some(slab), &to))
    });
    with_list(&rest, |rec, list| gpu::fetch::record(rec, &layout, list, raw, None, &to));
    let [keys, values, positions] = &mut host;
    let mut to = cpu::fetch::Target { keys, values, positions, dtype };
    cpu::fetch::fetch(&layout, class, &list, raw, Some(&both.host), &mut to);
    cpu::fetch::fetch(&layout, class, &rest, raw, None, &mut to);
    for (part, host) in host.iter().enumerate().filter(|(part, _)| wanted[*part]) {
        let device: Vec<u32> = support::download_as(&out[part]);
        let wrong = host.iter().zip(&device).position(|(host, device)| host != device);
        assert_eq!(wrong, None, "{class:?} {raw:?} {dtype:?} part {part}");
    }
}

#[test]
fn device_equals_host() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for raw in [Dtype::F16, Dtype::Bf16] {
            compare(PageClass::Raw, raw, dtype, [true; 3]);
        }
    }
    compare(PageClass::Sink, Dtype::F16, Dtype::F16, [true; 3]);
    compare(PageClass::Packed, Dtype::F16, Dtype::F16, [true; 3]);
    compare(PageClass::Raw, Dtype::F16, Dtype::F16, [true, false, false]);
    compare(PageClass::Raw, Dtype::F16, Dtype::F16, [false, true, true]);
    compare(PageClass::Packed, Dtype::F16, Dtype::F16, [false, true, false]);
}
