//! The frontier against its definition, step by step.

use proptest::prelude::*;
use wgkv::Error;
use wgkv::cache::plan::{Frontier, Restore};

/// The rule for appends, as written.
fn behind(chunk: usize, sinks: usize, recent: usize, len: usize) -> usize {
    chunk * (len.saturating_sub(sinks).saturating_sub(recent) / chunk)
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Append(usize),
    Trim(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0usize..200).prop_map(Op::Append),
        2 => (0usize..90).prop_map(Op::Trim),
    ];
    prop::collection::vec(op, 0..40)
}

proptest! {
    #[test]
    fn appends_do_not_depend_on_their_sizes(
        chunk in 2usize..70, sinks in 0usize..9, recent in 0usize..70,
        parts in prop::collection::vec(0usize..150, 0..20),
    ) {
        let mut stepwise = Frontier::new(chunk, sinks, recent).unwrap();
        let mut flushed = 0;
        for &part in &parts {
            let flush = stepwise.append(part).unwrap();
            prop_assert_eq!(flush.chunks.start, flushed);
            flushed = flush.chunks.end;
        }
        let total = parts.iter().sum();
        let mut once = Frontier::new(chunk, sinks, recent).unwrap();
        prop_assert_eq!(once.append(total).unwrap().chunks, 0..flushed);
        prop_assert_eq!(stepwise, once);
        prop_assert_eq!(once.packed(), behind(chunk, sinks, recent, total));
    }

    #[test]
    fn every_position_is_held_once(
        chunk in 2usize..40, sinks in 0usize..9, recent in 0usize..50, ops in ops(),
    ) {
        let mut frontier = Frontier::new(chunk, sinks, recent).unwrap();
        let (mut len, mut packed) = (0usize, 0usize);
        for op in ops {
            let before = frontier;
            match op {
                Op::Append(n) => {
                    frontier.append(n).unwrap();
                    len += n;
                    packed = packed.max(behind(chunk, sinks, recent, len));
                }
                Op::Trim(n) if n > len => {
                    let refused = matches!(
                        frontier.trim(n), Err(Error::TrimTooLong { got, held }) if got == n && held == len
                    );
                    prop_assert!(refused);
                    prop_assert_eq!(frontier, before);
                }
                Op::Trim(n) => {
                    let Restore { dropped, tokens, kept } = frontier.trim(n).unwrap();
                    len -= n;
                    let within_raw = len >= sinks + packed || packed == 0;
                    if !within_raw {
                        packed = behind(chunk, sinks, 0, len);
                    }
                    prop_assert_eq!(dropped.is_empty(), within_raw);
                    prop_assert_eq!(dropped.end * chunk, before.packed());
                    prop_assert!(tokens < chunk);
                    prop_assert_eq!(kept + tokens, frontier.raw());
                }
            }
            prop_assert_eq!(frontier.len(), len);
            prop_assert_eq!(frontier.packed(), packed);
            prop_assert!(frontier.raw() < sinks + recent + chunk);
            let mut held: Vec<usize> = frontier.raw_positions().collect();
            prop_assert_eq!(held.len(), frontier.raw());
            for chunk_index in 0..frontier.chunks() {
                let start = frontier.chunk_start(chunk_index);
                held.extend(start..start + chunk);
            }
            held.sort_unstable();
            prop_assert!(held.into_iter().eq(0..len));
        }
    }
}

#[test]
fn trims_at_the_borders() {
    let at = |len: usize, trim: usize, recent: usize| {
        let mut frontier = Frontier::new(64, 4, recent).unwrap();
        frontier.append(len).unwrap();
        let restore = frontier.trim(trim).unwrap();
        (frontier.len(), frontier.packed(), restore.dropped, restore.tokens, restore.kept)
    };
    assert_eq!(at(132, 0, 0), (132, 128, 2..2, 0, 4));
    assert_eq!(at(132, 1, 0), (131, 64, 1..2, 63, 4));
    assert_eq!(at(132, 64, 0), (68, 64, 1..2, 0, 4));
    assert_eq!(at(132, 65, 0), (67, 0, 0..2, 63, 4));
    assert_eq!(at(132, 128, 0), (4, 0, 0..2, 0, 4));
    assert_eq!(at(132, 129, 0), (3, 0, 0..2, 0, 3));
    assert_eq!(at(132, 132, 0), (0, 0, 0..2, 0, 0));
    assert_eq!(at(148, 16, 16), (132, 128, 2..2, 0, 4));
    assert_eq!(at(148, 17, 16), (131, 64, 1..2, 63, 4));
}

#[test]
fn refuses_what_no_page_takes() {
    assert!(matches!(Frontier::new(1, 0, 0), Err(Error::OutOfRange { argument: "chunk", .. })));
    assert!(matches!(Frontier::new(64, usize::MAX, 0), Err(Error::OutOfRange { .. })));
    assert!(matches!(Frontier::new(64, 0, usize::MAX), Err(Error::OutOfRange { .. })));
    let mut frontier = Frontier::new(64, 0, 0).unwrap();
    frontier.append(u32::MAX as usize).unwrap();
    let before = frontier;
    assert!(frontier.append(1).is_err());
    assert_eq!(frontier, before);
}
