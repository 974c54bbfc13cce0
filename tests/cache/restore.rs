//! Unpacking rows of packed pages, into raw pages and into dense tensors: both paths agree to
//! rounding, and nothing else is touched.

use wgkv::cache::gpu::restore::Dense;
use wgkv::cache::pool::{Encode, Restore};
use wgkv::cache::{FetchRows, cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::{PageClass, PoolLayout};
use wgkv::shape::{Dtype, Elements};

use crate::pack::raw_pages;
use crate::pages::{Both, Numbers, codecs, device_codecs, layout, with_list};
use crate::support;
use crate::write::elements;

/// Checks that elements agree to a step of their type or a small error.
fn near(ours: Elements<'_>, theirs: Elements<'_>, step: f32) {
    assert_eq!(ours.len(), theirs.len());
    for index in 0..ours.len() {
        let (a, b) = (ours.get(index), theirs.get(index));
        assert!((a - b).abs() <= step * b.abs() + 2e-5, "{index}: {a} against {b}");
    }
}

fn step(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => 2e-5,
        Dtype::F16 => 1.5e-3,
        Dtype::Bf16 => 1e-2,
    }
}

/// Packed pages with content, the same on both paths.
fn packed(layout: &PoolLayout, raw: Dtype, numbers: &mut Numbers) -> Both {
    let from = raw_pages(layout, raw, numbers);
    let mut packed = Both::new(layout, PageClass::Packed, || numbers.word());
    let pages = packed.pages(layout);
    let sources = from.pages(layout);
    let list: Vec<Encode> = pages
        .iter()
        .zip(sources.iter().cycle())
        .map(|(&to, &from)| Encode { from, to, scale: 0 })
        .collect();
    cpu::pack::pack(layout, &codecs(layout), &list, raw, &from.host, &mut packed.host, None)
        .unwrap();
    packed.refresh();
    packed
}

#[test]
fn raw_pages_get_their_rows_back() {
    for (dims, bits, chunk, raw) in
        [([64, 128], [2, 1], 16, Dtype::F16), ([80, 112], [1, 2], 5, Dtype::Bf16)]
    {
        let layout = layout(dims, bits, chunk, 4);
        let mut numbers = Numbers::new(chunk as u64);
        let packed = packed(&layout, raw, &mut numbers);
        let mut to = raw_pages(&layout, raw, &mut numbers);
        let pages = packed.pages(&layout);
        let targets = to.pages(&layout);
        let mut list: Vec<Restore> = targets[1..]
            .iter()
            .zip(pages.iter().rev())
            .map(|(&to, &from)| Restore {
                from,
                to,
                rows: numbers.below(chunk as u32 + 2),
                scale: 0,
            })
            .collect();
        let whole = list.len();
        for (missing, other) in packed.missing(&layout).into_iter().zip(to.missing(&layout)) {
            list.push(Restore { from: missing, to: targets[0], rows: 2, scale: 0 });
            list.push(Restore { from: pages[0], to: other, rows: 2, scale: 0 });
        }
        let codecs = codecs(&layout);
        let device = device_codecs(&codecs);
        with_list(&list, |rec, list| {
            for from in packed.slabs() {
                for to in to.slabs() {
                    gpu::restore::record(rec, &layout, &device, list, raw, &from, &to, None)?;
                }
            }
            Ok(())
        });
        cpu::restore::restore(&layout, &codecs, &list, raw, &packed.host, &mut to.host, None);
        let theirs = to.download();
        let [values, positions] =
            [layout.values_offset(PageClass::Raw), layout.positions_offset(PageClass::Raw)];
        for page in &targets {
            let slab = layout.slab_of(PageClass::Raw, *page) as usize;
            let word = layout.word_of(PageClass::Raw, *page);
            let of = |slabs: &[Option<Vec<u32>>]| {
                slabs[slab].as_ref().unwrap()[word..][..layout.words(PageClass::Raw)].to_vec()
            };
            let (host, device) = (of(&to.host), of(&theirs));
            let entry = list[..whole].iter().find(|entry| entry.to == *page);
            let rows = entry.map_or(0, |entry| entry.rows as usize).min(chunk);
            let sides = [(0, 0), (1, values)];
            for (side, first) in sides {
                let words = rows * layout.row_words(side);
                let of = |page: &[u32]| page[first..first + words].to_vec();
                let (ours, theirs) = (of(&device), of(&host));
                near(elements(&ours, raw), elements(&theirs, raw), step(raw));
                let end = first + layout.side_words(PageClass::Raw, side);
                assert_eq!(device[first + words..end], host[first + words..end]);
            }
            assert_eq!(device[positions..], host[positions..]);
        }
    }
}

#[test]
fn dense_rows_in_every_type() {
    let layout = layout([64, 80], [2, 1], 16, 4);
    let mut numbers = Numbers::new(3);
    let packed = packed(&layout, Dtype::F16, &mut numbers);
    let codecs = codecs(&layout);
    let device = device_codecs(&codecs);
    let pages = packed.pages(&layout);
    let mut list: Vec<FetchRows> = (0..)
        .zip(&pages)
        .map(|(index, &from)| FetchRows { from, to: 16 * index, rows: 3 + index % 14, scale: 0 })
        .collect();
    for from in packed.missing(&layout) {
        list.push(FetchRows { from, to: 0, rows: 3, scale: 0 });
    }
    // The last page goes beyond the tensor.
    let rows = 16 * pages.len() - 13;
    list.push(FetchRows { from: pages[0], to: 16 * pages.len() as u32, rows: 4, scale: 0 });
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for side in [0, 1] {
            let count = rows * layout.head_dims()[side];
            let mut host = numbers.elements(count, dtype);
            let out = support::context().upload("out", bytemuck::cast_slice(&host)).unwrap();
            with_list(&list, |rec, list| {
                let to = Dense { words: Slice::all(&out), rows, dtype };
                packed.slabs().iter().try_for_each(|from| {
                    gpu::restore::record_dense(
                        rec,
                        &layout,
                        &device[side],
                        side,
                        list,
                        from,
                        &to,
                        None,
                    )
                })
            });
            let (codec, from) = (&codecs[side], &packed.host);
            cpu::restore::restore_dense(&layout, codec, side, &list, from, dtype, &mut host, None);
            let theirs: Vec<u32> = support::download_as(&out);
            near(elements(&theirs, dtype), elements(&host, dtype), step(dtype));
        }
    }
}
