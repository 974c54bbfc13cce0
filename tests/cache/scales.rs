//! Key scales out of sink pages: device and host equal bit for bit.

use half::f16;
use wgkv::cache::{ScaleRow, cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::{PageClass, PoolLayout};
use wgkv::layout::{Bits, Profile};

use crate::pages::{Both, Numbers, with_list};
use crate::support;

#[test]
fn device_equals_host() {
    for (dim, sinks) in [(64, 4), (80, 0), (16, 1)] {
        let scheme = Profile::Tuned.scheme(Bits::Two);
        let with = |bytes| PoolLayout::with(dim, 64, Some([scheme; 2]), true, 8, sinks, bytes);
        let roomy = with(1 << 24).unwrap();
        let most = PageClass::ALL.map(|class| roomy.bytes(class)).into_iter().max().unwrap();
        let layout = with(5 * most).unwrap();
        assert_eq!(layout.scale_words(), dim / 2);
        let mut numbers = Numbers::new(dim as u64);
        // Factors from 1/2 to 2.
        let factor = |n: u32| u32::from(f16::from_f32(0.5 + n as f32 / 44000.0).to_bits());
        let mut both = Both::new(&layout, PageClass::Sink, || {
            factor(numbers.below(1 << 16)) | factor(numbers.below(1 << 16)) << 16
        });
        let pages = both.pages(&layout);
        let mut list: Vec<ScaleRow> =
            pages.iter().rev().zip(0..).map(|(&page, row)| ScaleRow { page, row }).collect();
        let rows = pages.len();
        for page in both.missing(&layout) {
            list.push(ScaleRow { page, row: 0 });
        }
        list.push(ScaleRow { page: pages[0], row: rows as u32 });
        let out = support::context().create("scales", (2 * rows * dim) as u64).unwrap();
        with_list(&list, |rec, list| {
            for slab in both.slabs() {
                gpu::scales::record(rec, &layout, list, &slab, Slice::all(&out), rows)?;
            }
            Ok(())
        });
        let host = cpu::scales::scales(&layout, &list, &both.host, rows);
        assert_eq!(support::download_as::<f16>(&out), host);
        // Factors that no encoder made count as 1, as do rows that no entry names.
        let slab = both.host[0].as_mut().unwrap();
        slab[layout.scale_offset()] = 0x7e00_0000;
        let entry = ScaleRow { page: pages[0], row: 1 };
        let host = cpu::scales::scales(&layout, &[entry], &both.host, 2);
        assert!(host[..dim + 2].iter().all(|factor| *factor == f16::ONE));
        assert!(host[dim + 2..].iter().any(|factor| *factor != f16::ONE));
    }
}
