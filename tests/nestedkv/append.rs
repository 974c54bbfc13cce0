//! Joining ragged rows with new items, on both paths.

use proptest::prelude::*;
use wgkv::Error;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::append;
use wgkv::nestedkv::gpu::append::{Rows, record};

use super::cases::{few, upload};
use super::support::{download_as, run};

proptest! {
    #![proptest_config(few(24))]

    #[test]
    fn both_paths_join_alike(
        lengths in prop::collection::vec(0u32..70, 1..40),
        tokens in 1usize..9,
        width in 1usize..70,
    ) {
        let mut offsets = vec![0];
        for length in &lengths {
            offsets.push(offsets.last().unwrap() + length);
        }
        let (rows, items) = (lengths.len(), *offsets.last().unwrap() as usize);
        let held: Vec<u32> = (0..(items * width) as u32).map(|i| i.wrapping_mul(3)).collect();
        let added: Vec<u32> = (0..(rows * tokens * width) as u32).map(|i| !i).collect();
        let (joined, starts) = append(&held, &offsets, &added, tokens, width).unwrap();
        for row in 0..rows {
            let (begin, end) = (starts[row] as usize * width, starts[row + 1] as usize * width);
            let old = &held[offsets[row] as usize * width..offsets[row + 1] as usize * width];
            let new = &added[row * tokens * width..(row + 1) * tokens * width];
            prop_assert_eq!(&joined[begin..end], &[old, new].concat()[..]);
        }
        let [held, offsets, added] = [&held, &offsets, &added].map(|words| upload(&words[..]));
        let device = run(|rec| {
            record(rec, &Rows {
                held: Slice::all(&held),
                held_items: items,
                offsets: Slice::all(&offsets),
                added: Slice::all(&added),
                rows,
                tokens,
                width,
            })
        })
        .unwrap();
        prop_assert_eq!(download_as::<u32>(&device.items), joined);
        prop_assert_eq!(download_as::<u32>(&device.starts), starts);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused =
        |offsets: &[u32], added: &[u32], tokens| append(&[1u32, 2], offsets, added, tokens, 1);
    assert!(matches!(refused(&[0, 3], &[9], 1), Err(Error::Offsets { .. })));
    assert!(matches!(refused(&[0, 2], &[9], 2), Err(Error::Length { .. })));
    assert!(refused(&[], &[], 1).is_err());
    let words = upload(&[0u32; 4]);
    let rows = Rows {
        held: Slice::all(&words),
        held_items: 4,
        offsets: Slice::all(&words),
        added: Slice::all(&words),
        rows: 3,
        tokens: 1,
        width: 1,
    };
    let refused = |rows: Rows<'_>| run(|rec| record(rec, &rows).map(|_| ())).unwrap_err();
    assert!(matches!(refused(Rows { held_items: 5, ..rows }), Error::Length { .. }));
    assert!(matches!(refused(Rows { rows: 4, ..rows }), Error::Length { .. }));
    assert!(matches!(refused(Rows { tokens: 2, ..rows }), Error::Length { .. }));
    assert!(matches!(refused(Rows { width: 0, ..rows }), Error::Empty { .. }));
    assert!(matches!(refused(Rows { rows: usize::MAX, ..rows }), Error::Length { .. }));
}
