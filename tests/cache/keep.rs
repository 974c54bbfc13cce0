//! Gathering what is kept of a prompt: device and host equal bit for bit.

use wgkv::cache::gpu::keep::Kept;
use wgkv::cache::pool::Gather;
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::{PageClass, PageId};

use crate::pages::{Both, Numbers, layout};
use crate::support;

#[test]
fn device_equals_host() {
    for (dims, chunk, sinks) in [([64, 64], 4, 3), ([80, 112], 5, 0), ([16, 256], 2, 1)] {
        let layout = layout(dims, [2, 2], chunk, sinks);
        let mut numbers = Numbers::new(chunk as u64);
        let mut both = Both::new(&layout, PageClass::Raw, || numbers.word());
        let pages = both.pages(&layout);
        // The prompt of two heads lies in two pages each, in several slabs; the rest is written.
        let tokens = (sinks + 2 * chunk) as u32 - 1;
        let table: Vec<PageId> = vec![pages[0], pages[7], pages[8], pages[1]];
        let written = &pages[2..7];
        let mut kept = Vec::new();
        let mut list = Vec::new();
        let missing = both.missing(&layout);
        for (index, &to) in written.iter().chain(&missing).enumerate() {
            let (first, rows) = (kept.len() as u32, chunk as u32);
            kept.extend((0..chunk).map(|_| numbers.below(tokens)));
            list.push(Gather { to, rows, kept: first, table: 2 * (index as u32 % 2) });
        }
        // Positions that are no rows of the prompt, and lists that are not there.
        kept[1] = u32::MAX;
        kept[chunk] = tokens;
        list[1].table = 3;
        list[2].table = u32::MAX;
        list[3].kept = kept.len() as u32 - 1;
        list[4].rows = 1000;

        let context = support::context();
        let mut words: Vec<u32> = bytemuck::cast_slice(&list).to_vec();
        let first = words.len() as u32;
        words.extend_from_slice(bytemuck::cast_slice(&table));
        let words = context.upload("list", bytemuck::cast_slice(&words)).unwrap();
        let positions = context.upload("kept", bytemuck::cast_slice(&kept)).unwrap();
        let part = gpu::List { words: Slice::all(&words), first: 0, count: list.len() as u32 };
        let of = Kept {
            positions: Slice::all(&positions),
            count: kept.len() as u32,
            tokens,
            table: first,
            table_pages: table.len() as u32,
        };
        support::run(|rec| {
            for from in both.slabs() {
                for to in both.slabs() {
                    gpu::keep::record(rec, &layout, &part, &of, &from, &to)?;
                }
            }
            Ok(())
        })
        .unwrap();
        let before = both.host.clone();
        cpu::keep::keep(&layout, &list, &kept, tokens, &table, &mut both.host);
        assert_ne!(both.host, before);
        both.check();
    }
}
