//! What broke for others, on the account of the pool: trims of evicted heads, rejected drafts,
//! forks, batches whose members come and go.

use wgkv::Error;
use wgkv::cache::pool::{Keep, Operation, Part, Pool, PoolConfig, SequenceId, Tables};
use wgkv::layout::Bits;
use wgkv::layout::pool::{PageClass, PageId, PoolLayout};
use wgkv::shape::Dtype;

use crate::pool::World;
use crate::pool_model::Row;

pub fn config() -> PoolConfig {
    PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: 2,
        heads: 2,
        head_dim_k: 64,
        head_dim_v: 64,
        bits: Some((Bits::Two, Bits::Two)),
        chunk: 64,
        sinks: 0,
        recent: 0,
        raw: Dtype::F16,
        byte_budget: 1 << 30,
        slab_bytes: 1 << 20,
    }
}

fn world(sinks: usize, recent: usize) -> World {
    World::new(PoolConfig { sinks, recent, ..config() })
}

fn held(world: &World) -> u64 {
    world.pool.figures().parts.total()
}

/// Rows of a head without what names the row.
fn rows(world: &World, place: usize, layer: usize, head: usize) -> Vec<(u32, bool, u32)> {
    let tables = world.pool.tables(&[world.live[place].0], layer).unwrap();
    let row = |row: Row| (row.position, row.packed, row.restored);
    world.memory.rows(&tables, layer, head).into_iter().map(row).collect()
}

fn positions(world: &World, place: usize, head: usize) -> Vec<u32> {
    world.pool.positions(world.live[place].0, 1, head).unwrap()
}

#[test]
fn t13_frontier_at_every_border() {
    let lengths = (0..=130).chain(191..=193).chain(255..=257).chain(1023..=1027);
    for tokens in lengths.chain([113 * 64, 129 * 64 + 3, 1025 * 64]) {
        for sinks in [0, 4] {
            for recent in [0, 1, 63, 64, 65] {
                let mut config = PoolConfig { layers: 1, heads: 1, sinks, recent, ..config() };
                config.slab_bytes = 1 << 24;
                let mut pool = Pool::new(config).unwrap();
                let sequence = pool.begin();
                let parts = [Part { sequence, tokens }];
                let step = pool.plan(&Operation::Append { parts: &parts, flush: true }).unwrap();
                pool.commit(step).unwrap();
                let packed = (tokens as usize).saturating_sub(sinks + recent) / 64 * 64;
                assert_eq!(pool.frontier(sequence, 0, 0).unwrap() as usize, packed);
                assert_eq!(pool.rows(sequence, 0, 0).unwrap(), tokens);
                let raw = tokens as usize - packed;
                assert!(raw < sinks + recent + 64);
                let pages = pool.figures().pages[PageClass::Raw.index()] as usize;
                assert_eq!(pages, raw.saturating_sub(sinks).div_ceil(64));
            }
        }
    }
}

#[test]
fn t18_next_position_after_eviction_decode_and_trim() {
    let mut world = world(4, 16);
    let place = world.begin();
    assert!(world.add(&[(0, 150)], true, false));
    assert!(world.add(&[(0, 150)], true, false));
    assert_eq!(world.pool.seen(world.live[place].0).unwrap(), 300);
    let budget = |layer: usize, head: usize| [128, 90, 200, 94][2 * layer + head];
    let keep = |layer: usize, head: usize| {
        (0..300).filter(|p| *p < 4 || *p >= 304 - budget(layer, head)).collect()
    };
    assert!(world.finish(place, 0..2, Some(&keep), true));
    let before = positions(&world, place, 1);
    assert!(world.add(&[(0, 5)], false, true));
    assert_eq!(before.len(), 94);
    assert_eq!(world.pool.seen(world.live[place].0).unwrap(), 305);
    assert!(world.trim(&[(0, 2)]));
    assert_eq!(world.pool.seen(world.live[place].0).unwrap(), 303);
    assert!(world.add(&[(0, 1)], false, true));
    assert_eq!(world.pool.seen(world.live[place].0).unwrap(), 304);
    let after = positions(&world, place, 1);
    assert_eq!(after[..94], before);
    assert_eq!(after[94..], [300, 301, 302, 303]);
    world.check();
    world.end();
}

#[test]
fn t19_trim_counts_positions_and_each_head_its_own_rows() {
    // One head kept the last token, the others did not.
    let kept: [[u32; 4]; 4] = [[0, 3, 11, 19], [0, 5, 9, 12], [1, 2, 3, 4], [16, 17, 18, 19]];
    for (dropped, left) in [(3, [3, 4, 4, 1]), (17, [1, 1, 2, 0]), (20, [0, 0, 0, 0])] {
        for chunk in [2, 64] {
            let mut world = World::new(PoolConfig { chunk, ..config() });
            let place = world.begin();
            assert!(world.add(&[(0, 20)], true, false));
            let keep = |layer: usize, head: usize| kept[2 * layer + head].to_vec();
            assert!(world.finish(place, 0..2, Some(&keep), true));
            world.check();
            assert!(world.trim(&[(0, dropped)]));
            world.check();
            let id = world.live[place].0;
            assert_eq!(world.pool.seen(id).unwrap(), 20 - u32::from(dropped));
            let count = |world: &World| {
                [0, 1, 2, 3].map(|row| world.pool.rows(id, row / 2, row % 2).unwrap())
            };
            assert_eq!(count(&world), left);
            for (row, kept) in kept.iter().enumerate() {
                let gone = kept.iter().filter(|p| **p >= 20 - u32::from(dropped)).count();
                assert_eq!(left[row] as usize + gone, 4);
            }
            assert!(world.add(&[(0, 2)], false, true));
            world.check();
            assert_eq!(count(&world), left.map(|rows| rows + 2));
            let next = 20 - u32::from(dropped);
            assert!(positions(&world, place, 0).ends_with(&[next, next + 1]));
            world.end();
        }
    }
}

#[test]
fn t19_trim_of_more_than_there_is_changes_nothing() {
    let mut world = world(0, 0);
    let place = world.begin();
    assert!(world.add(&[(0, 20)], true, false));
    assert!(world.finish(place, 0..2, Some(&|_, _| vec![0, 3, 11, 19]), true));
    let parts = [Part { sequence: world.live[place].0, tokens: 21 }];
    let revision = world.pool.revision();
    let fault = world.pool.plan(&Operation::Trim { parts: &parts });
    assert!(matches!(fault, Err(Error::TrimTooLong { got: 21, held: 20 })));
    assert_eq!(world.pool.revision(), revision);
    world.check();
}

#[test]
fn t19_trim_into_an_evicted_prompt_waits_for_its_positions() {
    let mut world = world(2, 0);
    let place = world.begin();
    assert!(world.add(&[(0, 20)], true, false));
    assert!(world.finish(place, 0..2, Some(&|_, _| vec![0, 1, 11, 19]), false));
    assert!(world.add(&[(0, 5)], false, true));
    // What was decoded, and all but the sinks, can go without knowing which rows were kept.
    world.fork(place);
    assert!(world.trim(&[(1, 5)]));
    assert!(!world.trim(&[(1, 1)]));
    assert!(world.trim(&[(1, 18)]));
    world.check();
    world.tell(place);
    assert!(world.trim(&[(0, 10)]));
    assert_eq!(positions(&world, place, 0), [0, 1, 11]);
    world.check();
    world.end();
}

#[test]
fn t20_any_split_of_an_append_gives_the_same_tables() {
    let splits: [&[u8]; 4] = [&[150, 150], &[1; 300], &[63, 1, 64, 1, 171], &[5; 60]];
    let mut results = Vec::new();
    for split in splits {
        let mut world = world(4, 16);
        let place = world.begin();
        for tokens in split {
            assert!(world.add(&[(0, *tokens)], false, true));
            let tables = world.pool.tables(&[world.live[place].0], 0).unwrap();
            assert!(tables.sink_rows[0] + tables.tail_rows[0] <= 4 + 16 + 63);
        }
        world.check();
        let figures = world.pool.sequence_figures(world.live[place].0).unwrap();
        assert!(figures.parts.total() < figures.full_bytes);
        results.push((rows(&world, place, 1, 1), figures, held(&world)));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn t21_rejected_drafts_leave_what_accepted_tokens_leave() {
    for recent in [8, 0] {
        let (mut drafts, mut accepted) = (world(0, recent), world(0, recent));
        for world in [&mut drafts, &mut accepted] {
            world.begin();
            assert!(world.add(&[(0, 100)], true, false));
            assert!(world.finish(0, 0..2, None, false));
        }
        for _ in 0..50 {
            assert!(drafts.add(&[(0, 5)], false, true));
            assert!(drafts.trim(&[(0, 4)]));
            assert!(accepted.add(&[(0, 1)], false, true));
            drafts.check();
        }
        let figures = |world: &World| world.pool.sequence_figures(world.live[0].0).unwrap();
        assert_eq!(figures(&drafts), figures(&accepted));
        assert_eq!(held(&drafts), held(&accepted));
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (left, right) = (rows(&drafts, 0, layer, head), rows(&accepted, 0, layer, head));
            if recent == 8 {
                assert_eq!(left, right);
            } else {
                // Rows that came back from a chunk differ in nothing else.
                let plain = |rows: Vec<(u32, bool, u32)>| -> Vec<(u32, bool)> {
                    rows.into_iter().map(|(position, packed, _)| (position, packed)).collect()
                };
                assert_eq!(plain(left), plain(right));
            }
        }
        assert_eq!(drafts.pool.seen(drafts.live[0].0).unwrap(), 150);
    }
}

#[test]
fn t22_forks_share_pages_until_the_last_owner_leaves() {
    let mut world = world(0, 0);
    let layout: PoolLayout = world.pool.layout().clone();
    let bytes = |packed: u64, raw: u64| {
        4 * (packed * layout.bytes(PageClass::Packed) + raw * layout.bytes(PageClass::Raw))
    };
    assert_eq!(held(&world), 0);
    world.begin();
    assert!(world.add(&[(0, 130)], false, true));
    assert_eq!(held(&world), bytes(2, 1));
    let main = rows(&world, 0, 0, 0);
    world.fork(0);
    world.fork(0);
    assert_eq!(held(&world), bytes(2, 1));
    assert_eq!(world.pool.figures().shared, [0, 8, 4]);
    // Two forks that fill their own third pages: the shared rows of the tail are copied.
    assert!(world.add(&[(1, 62)], false, true));
    assert_eq!(held(&world), bytes(3, 1));
    assert!(world.add(&[(2, 62)], false, true));
    assert_eq!(held(&world), bytes(4, 1));
    world.check();
    let b = rows(&world, 2, 0, 0);
    // 92 rows of a stay: one shared page, and 28 rows that come back from the second.
    assert!(world.trim(&[(1, 100)]));
    assert_eq!(held(&world), bytes(3, 2));
    world.check();
    assert_eq!(rows(&world, 0, 0, 0), main);
    assert_eq!(rows(&world, 2, 0, 0), b);
    world.free(0);
    assert_eq!(held(&world), bytes(3, 1));
    world.check();
    assert_eq!(rows(&world, 1, 0, 0), b);
    world.free(0);
    assert_eq!(held(&world), bytes(3, 0));
    world.check();
    assert_eq!(rows(&world, 0, 0, 0), b);
    world.free(0);
    assert_eq!(held(&world), 0);
    world.end();
}

#[test]
fn t22_members_of_one_batch_that_share_a_page_copy_it_once_less() {
    let mut world = world(4, 0);
    world.begin();
    assert!(world.add(&[(0, 2)], true, false));
    world.fork(0);
    world.fork(0);
    assert!(world.finish(0, 0..2, None, false));
    assert!(world.finish(1, 0..2, None, false));
    assert!(world.finish(2, 0..2, None, false));
    let parts: Vec<Part> =
        world.live.iter().map(|(sequence, _)| Part { sequence: *sequence, tokens: 4 }).collect();
    let step = world.pool.plan(&Operation::Append { parts: &parts, flush: true }).unwrap();
    assert!(step.layers().all(|(_, layer)| layer.sink_copies.len() == 2 * 2));
    assert!(world.add(&[(0, 4), (1, 4), (2, 4)], false, true));
    world.check();
    world.end();
}

/// Keeps the sinks, every `of`-th position, and the last.
fn every(of: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).filter(|p| *p < 4 || p.is_multiple_of(of) || p + 1 == tokens).collect()
}

#[test]
fn t23_members_leave_and_join_and_nobody_else_changes() {
    let lengths = [200, 1, 64, 65, 0, 130];
    let keep =
        |layer: usize, head: usize, tokens: u32| every([2, 3, 1, 5][2 * layer + head], tokens);
    let prepare = |world: &mut World, tokens: u8| {
        let place = world.begin() as u8;
        assert!(world.add(&[(place, tokens)], true, false));
        let keep = |layer, head| keep(layer, head, u32::from(tokens));
        assert!(world.finish(place as usize, 0..2, Some(&keep), true));
    };
    let mut batch = world(4, 8);
    lengths[..5].iter().for_each(|tokens| prepare(&mut batch, *tokens));
    let step = |world: &mut World| {
        let parts: Vec<(u8, u8)> = (0..world.live.len()).map(|place| (place as u8, 1)).collect();
        assert!(world.add(&parts, false, true));
    };
    (0..3).for_each(|_| step(&mut batch));
    batch.check();
    batch.free(0);
    (0..70).for_each(|_| step(&mut batch));
    prepare(&mut batch, 130);
    (0..10).for_each(|_| step(&mut batch));
    batch.check();
    assert!(batch.pool.figures().parts.codes > 0);
    for (place, (tokens, steps)) in lengths[1..].iter().zip([83, 83, 83, 83, 10]).enumerate() {
        let mut alone = world(4, 8);
        prepare(&mut alone, *tokens);
        (0..steps).for_each(|_| step(&mut alone));
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert_eq!(rows(&batch, place, layer, head), rows(&alone, 0, layer, head));
        }
        let (id, other) = (batch.live[place].0, alone.live[0].0);
        assert_eq!(
            batch.pool.sequence_figures(id).unwrap(),
            alone.pool.sequence_figures(other).unwrap()
        );
    }
    batch.end();
}

#[test]
fn budget_reached_in_the_middle_of_a_batch_changes_nothing() {
    let mut config = PoolConfig { recent: 16, ..config() };
    let layout = config.layout().unwrap();
    config.slab_bytes = 4 * layout.bytes(PageClass::Raw);
    config.byte_budget = 4 * config.slab_bytes;
    let mut world = World::new(config);
    (0..3).for_each(|_| assert!(world.begin() < 3));
    assert!(world.add(&[(0, 64), (1, 60), (2, 64)], false, true));
    let before = world.pool.figures();
    // The second member could still grow, the third not.
    assert!(!world.add(&[(0, 1), (1, 1), (2, 1)], false, true));
    assert_eq!(world.pool.figures(), before);
    world.check();
    assert!(world.add(&[(0, 1), (1, 4)], false, true));
    world.check();
    world.free(2);
    assert!(world.add(&[(0, 1), (1, 1)], false, true));
    world.end();
}

#[test]
fn a_slab_that_nobody_uses_makes_room_for_another_class() {
    let mut config = PoolConfig { heads: 1, layers: 1, sinks: 4, recent: 64, ..config() };
    config.slab_bytes = config.layout().unwrap().bytes(PageClass::Raw);
    let layout = config.layout().unwrap();
    config.byte_budget = 3 * layout.slab_bytes(PageClass::Raw) + layout.slab_bytes(PageClass::Sink);
    let mut world = World::new(config);
    world.begin();
    assert!(world.add(&[(0, 196)], true, false));
    assert_eq!(world.pool.figures().slabs, [1, 0, 3]);
    let finish = Operation::Finish { sequence: world.live[0].0, layers: 0..1, keep: Keep::All };
    assert!(matches!(
        world.pool.plan(&finish),
        Err(Error::OutOfBudget { needed, available: 0 })
            if needed == layout.slab_bytes(PageClass::Packed)
    ));
    world.free(0);
    assert_eq!(world.pool.figures().slabs, [1, 0, 3]);
    world.begin();
    assert!(world.add(&[(0, 132)], false, true));
    assert_eq!(world.pool.figures().slabs, [1, 1, 2]);
    world.check();
    world.end();
}

#[test]
fn a_trim_needs_no_memory_while_there_is_a_tail_of_ones_own() {
    let mut config = PoolConfig { heads: 1, layers: 1, ..config() };
    config.slab_bytes = config.layout().unwrap().bytes(PageClass::Raw);
    let layout = config.layout().unwrap();
    config.byte_budget = layout.slab_bytes(PageClass::Raw) + layout.slab_bytes(PageClass::Packed);
    let mut world = World::new(config);
    world.begin();
    assert!(world.add(&[(0, 64)], false, true));
    assert!(world.add(&[(0, 9)], false, true));
    let parts = [Part { sequence: world.live[0].0, tokens: 30 }];
    let needs = world.pool.needs(&Operation::Trim { parts: &parts }).unwrap();
    assert_eq!(needs.pages, [0; 3]);
    assert!(world.trim(&[(0, 30)]));
    world.check();
    world.end();
}

#[test]
fn a_plan_that_is_stale_is_refused() {
    let mut pool = Pool::new(config()).unwrap();
    let sequence = pool.begin();
    let parts = [Part { sequence, tokens: 3 }];
    let append = Operation::Append { parts: &parts, flush: true };
    let (first, second) = (pool.plan(&append).unwrap(), pool.plan(&append).unwrap());
    pool.commit(first).unwrap();
    assert!(matches!(pool.commit(second), Err(Error::StalePlan { planned: 0, current: 1 })));
    assert_eq!(pool.seen(sequence).unwrap(), 3);
}

#[test]
fn members_come_once_and_must_be_there() {
    let mut pool = Pool::new(config()).unwrap();
    let sequence = pool.begin();
    let part = Part { sequence, tokens: 1 };
    let twice = Operation::Append { parts: &[part, part], flush: true };
    assert!(matches!(pool.plan(&twice), Err(Error::Repeated { index: 1, .. })));
    pool.free(sequence).unwrap();
    let gone = Operation::Append { parts: &[part], flush: true };
    assert!(matches!(pool.plan(&gone), Err(Error::UnknownSequence { .. })));
    // The place is taken again; the old name does not reach its new owner.
    let next: SequenceId = pool.begin();
    assert!(matches!(pool.tables(&[sequence], 0), Err(Error::UnknownSequence { .. })));
    assert!(pool.tables(&[next], 0).unwrap().is_empty());
    assert!(matches!(pool.tables(&[next], 2), Err(Error::OutOfRange { .. })));
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let mut pool = Pool::new(PoolConfig { sinks: 4, ..config() }).unwrap();
    let sequence = pool.begin();
    let parts = [Part { sequence, tokens: 10 }];
    let step = pool.plan(&Operation::Prefill { parts: &parts }).unwrap();
    pool.commit(step).unwrap();
    let finish = |counts: &[u32]| {
        let keep = Keep::Counts(counts);
        pool.plan(&Operation::Finish { sequence, layers: 0..2, keep }).map(|_| ())
    };
    assert!(matches!(finish(&[4, 4, 4]), Err(Error::Length { expected: 4, .. })));
    let fault = |got| Error::OutOfRange { argument: "counts", got, min: 4, max: 10 };
    for got in [3u32, 11] {
        let expected = fault(u64::from(got)).to_string();
        assert_eq!(finish(&[4, got, 4, 4]).unwrap_err().to_string(), expected);
    }
    finish(&[4, 10, 5, 9]).unwrap();
    let layers =
        |layers| pool.plan(&Operation::Finish { sequence, layers, keep: Keep::All }).map(|_| ());
    assert!(layers(1..3).is_err());
    assert!(layers(1..1).is_err());
    layers(1..2).unwrap();
}

#[test]
fn positions_that_cannot_be_are_refused() {
    let mut world = world(2, 0);
    world.begin();
    assert!(world.add(&[(0, 10)], true, false));
    assert!(world.finish(0, 0..2, Some(&|_, _| vec![0, 1, 5]), false));
    let id = world.live[0].0;
    let mut set = |list: &[u32]| world.pool.set_positions(id, 0, list);
    assert!(matches!(set(&[0, 1, 5]), Err(Error::Length { expected: 6, .. })));
    for (list, index) in [
        ([0, 2, 5, 0, 1, 6], 1),
        ([0, 1, 10, 0, 1, 6], 2),
        ([0, 1, 5, 0, 1, 1], 5),
        ([0, 1, 5, 1, 2, 3], 3),
    ] {
        assert!(matches!(set(&list), Err(Error::Offsets { index: i, .. }) if i == index));
    }
    set(&[0, 1, 5, 0, 1, 6]).unwrap();
    assert!(matches!(set(&[0, 1, 5, 0, 1, 6]), Err(Error::Finished { .. })));
}

#[test]
fn a_table_that_names_a_page_nobody_holds_is_refused() {
    let mut world = world(4, 0);
    world.begin();
    assert!(world.add(&[(0, 200)], false, true));
    let tables = world.pool.tables(&[world.live[0].0], 0).unwrap();
    tables.check(&world.pool, 0).unwrap();
    let far = PageId::new(12_345_678);
    type Spoil = fn(&mut Tables, PageId);
    let spoils: [Spoil; 6] = [
        |t, page| t.packed[1] = page,
        |t, page| t.tail[0] = page,
        |t, page| t.sinks[1] = page,
        |t, _| t.sink_rows[0] = 5,
        |t, _| t.tail_rows[1] = 65,
        |t, _| t.packed_offsets[1] = 7,
    ];
    for spoil in spoils {
        let mut spoilt = tables.clone();
        spoil(&mut spoilt, far);
        assert!(spoilt.check(&world.pool, 0).is_err());
    }
}

#[test]
fn a_page_is_its_parts() {
    for bits in [None, Some((Bits::One, Bits::Two))] {
        for (head_dim_k, head_dim_v) in [(64, 64), (80, 112), (192, 128), (16, 8)] {
            let chunk = 33;
            let config = PoolConfig { bits, head_dim_k, head_dim_v, chunk, sinks: 3, ..config() };
            let layout = config.layout().unwrap();
            for class in PageClass::ALL {
                let values = layout.values_offset(class);
                assert!(values >= layout.side_words(class, 0) && values.is_multiple_of(4));
                let positions = layout.positions_offset(class);
                assert!(positions >= values + layout.side_words(class, 1));
                assert!(layout.words(class) >= positions + layout.rows(class));
                assert!(layout.slab_bytes(class) <= config.slab_bytes);
                let pages = layout.pages_per_slab(class);
                for (slab, index) in [(0, 0), (1, 0), (3, pages.saturating_sub(1))] {
                    let page = layout.page(class, slab, index);
                    assert_eq!(layout.slab_of(class, page), slab);
                    assert_eq!(layout.index_of(class, page), index);
                }
                assert!(!layout.page(class, layout.max_slabs(class) - 1, 0).is_none());
            }
            let parts = wgkv::cache::pool::Parts::new(&layout, [1, 1, 1]);
            let held: u64 = PageClass::ALL.map(|class| layout.bytes(class)).iter().sum();
            assert_eq!(parts.total(), held);
            assert!(parts.padding < 3 * 48);
        }
    }
}
