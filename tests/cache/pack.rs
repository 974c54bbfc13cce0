//! Packing of raw pages: as the encoder of NSNQuant packs their rows, on both paths.

use wgkv::cache::pool::Encode;
use wgkv::cache::{cpu, gpu};
use wgkv::layout::pool::{PageClass, PoolLayout};
use wgkv::nsnquant;
use wgkv::shape::Dtype;

use crate::compare::same_pages;
use crate::pages::{Both, Numbers, codecs, device_codecs, layout, with_list};
use crate::write::elements;

/// Fills raw pages with normal elements.
pub fn raw_pages(layout: &PoolLayout, raw: Dtype, numbers: &mut Numbers) -> Both {
    let mut both = Both::new(layout, PageClass::Raw, || numbers.word());
    for slab in both.host.iter_mut().flatten() {
        for page in slab.chunks_mut(layout.words(PageClass::Raw)) {
            let values = layout.values_offset(PageClass::Raw);
            for (side, first) in [0, values].into_iter().enumerate() {
                let words = numbers.elements(layout.chunk() * layout.head_dims()[side], raw);
                page[first..first + words.len()].copy_from_slice(&words);
            }
        }
    }
    both.refresh();
    both
}

#[test]
fn pages_are_those_of_the_encoder() {
    for (dims, bits, chunk, raw) in [
        ([64, 128], [2, 1], 16, Dtype::F16),
        ([80, 112], [1, 2], 5, Dtype::Bf16),
        ([128, 64], [2, 2], 64, Dtype::F16),
    ] {
        let layout = layout(dims, bits, chunk, 4);
        let mut numbers = Numbers::new(chunk as u64);
        let raw_pages = raw_pages(&layout, raw, &mut numbers);
        let mut packed = Both::new(&layout, PageClass::Packed, || numbers.word());
        let (from, to) = (raw_pages.pages(&layout), packed.pages(&layout));
        let mut list: Vec<Encode> = from
            .iter()
            .zip(to.iter().rev())
            .map(|(&from, &to)| Encode { from, to, scale: 0 })
            .collect();
        for (missing, other) in raw_pages.missing(&layout).into_iter().zip(packed.missing(&layout))
        {
            list.push(Encode { from: missing, to: to[0], scale: 0 });
            list.push(Encode { from: from[0], to: other, scale: 0 });
        }
        let before = packed.host.clone();
        let codecs = codecs(&layout);
        let device = device_codecs(&codecs);
        with_list(&list, |rec, list| {
            for from in raw_pages.slabs() {
                for to in packed.slabs() {
                    gpu::pack::record(rec, &layout, &device, list, raw, &from, &to, None)?;
                }
            }
            Ok(())
        });
        cpu::pack::pack(&layout, &codecs, &list, raw, &raw_pages.host, &mut packed.host, None)
            .unwrap();
        let theirs = packed.download();
        let page = |slabs: &[Option<Vec<u32>>], class, page| -> Vec<u32> {
            let words = slabs[layout.slab_of(class, page) as usize].as_ref().unwrap();
            words[layout.word_of(class, page)..][..layout.words(class)].to_vec()
        };
        let mut touched = Vec::new();
        for entry in &list[..from.len().min(to.len())] {
            touched.push(entry.to);
            let source = page(&raw_pages.host, PageClass::Raw, entry.from);
            let host = page(&packed.host, PageClass::Packed, entry.to);
            let device = page(&theirs, PageClass::Packed, entry.to);
            for (side, codec) in codecs.iter().enumerate() {
                let start = |class| if side == 0 { 0 } else { layout.values_offset(class) };
                let rows = &source[start(PageClass::Raw)..];
                let rows = &rows[..layout.side_words(PageClass::Raw, side)];
                let data = elements(rows, raw);
                let first = start(PageClass::Packed);
                let part = first..first + codec.layout().words();
                let expected = nsnquant::cpu::encode(codec, data, &[0]).unwrap();
                assert_eq!(host[part.clone()], expected);
                same_pages("pack", codec, data, &[0], &device[part], &expected).unwrap();
            }
            let (a, b) = (
                layout.positions_offset(PageClass::Raw),
                layout.positions_offset(PageClass::Packed),
            );
            assert_eq!(host[b..b + chunk], source[a..a + chunk]);
            assert_eq!(device[b..b + chunk], source[a..a + chunk]);
        }
        // Other pages are as they were.
        for other in to.iter().filter(|page| !touched.contains(page)) {
            let was = page(&before, PageClass::Packed, *other);
            assert_eq!(page(&theirs, PageClass::Packed, *other), was);
            assert_eq!(page(&packed.host, PageClass::Packed, *other), was);
        }
    }
    crate::compare::report();
}
