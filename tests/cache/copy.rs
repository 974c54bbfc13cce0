//! Copies from page to page: device and host equal bit for bit.

use wgkv::cache::pool::CopyRows;
use wgkv::cache::{cpu, gpu};
use wgkv::layout::pool::PageClass;

use crate::pages::{Both, Numbers, layout, with_list};

#[test]
fn device_equals_host() {
    for (class, dims, chunk, sinks) in [
        (PageClass::Raw, [64, 64], 16, 4),
        (PageClass::Raw, [80, 112], 5, 0),
        (PageClass::Sink, [16, 128], 64, 7),
    ] {
        let layout = layout(dims, [2, 1], chunk, sinks);
        let mut numbers = Numbers::new(chunk as u64);
        let mut both = Both::new(&layout, class, || numbers.word());
        let pages = both.pages(&layout);
        // The second half is written; the others, and pages that there are not, are read.
        let (read, written) = pages.split_at(pages.len() / 2);
        let mut list: Vec<CopyRows> = written
            .iter()
            .zip(read.iter().cycle())
            .map(|(&to, &from)| CopyRows { from, to, rows: numbers.below(chunk as u32 + 3) })
            .collect();
        for missing in both.missing(&layout) {
            list.push(CopyRows { from: read[0], to: missing, rows: 2 });
            list.push(CopyRows { from: missing, to: written[0], rows: 2 });
        }
        with_list(&list, |rec, list| {
            for from in both.slabs() {
                for to in both.slabs() {
                    gpu::copy::record(rec, &layout, list, &from, &to)?;
                }
            }
            Ok(())
        });
        let before = both.host.clone();
        cpu::copy::copy(&layout, class, &list, &mut both.host);
        assert_ne!(both.host, before);
        both.check();
    }
}
