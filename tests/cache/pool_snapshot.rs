//! Sequences that are taken out of a pool and put into another.

use proptest::prelude::*;
use wgkv::Error;
use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig, Snapshot};
use wgkv::layout::pool::PageClass;

use crate::pool::World;
use crate::pool_trials::config;

/// Two forks with shared pages and one evicted prompt, told or not, trimmed into or not.
pub fn world(told: bool, trimmed: bool) -> World {
    let mut world = World::new(PoolConfig { chunk: 8, sinks: 2, recent: 3, ..config() });
    world.begin();
    assert!(world.add(&[(0, 60)], true, false));
    let keep = |layer: usize, head: usize| -> Vec<u32> {
        let of = [1, 2, 3, 7][2 * layer + head];
        (0..60).filter(|p| *p < 2 || p % of == 0).collect()
    };
    assert!(world.finish(0, 0..2, Some(&keep), told));
    assert!(world.add(&[(0, 20)], false, true));
    world.fork(0);
    assert!(world.add(&[(1, 9)], false, true));
    if trimmed && told {
        assert!(world.trim(&[(1, 50)]));
    }
    world.begin();
    assert!(world.add(&[(2, 5)], true, false));
    world
}

fn taken(world: &World) -> Snapshot {
    let ids: Vec<_> = world.live.iter().map(|(id, _)| *id).collect();
    world.pool.snapshot(&ids).unwrap().0
}

#[test]
fn what_is_put_into_an_empty_pool_takes_the_same_pages_and_bytes() {
    for (told, trimmed) in [(false, false), (true, false), (true, true)] {
        let world = world(told, trimmed);
        let snapshot = taken(&world);
        let mut pool = Pool::new(world.pool.config().clone()).unwrap();
        let load = pool.plan_load(&snapshot).unwrap();
        let ids = pool.commit_load(load).unwrap();
        assert_eq!(pool.figures().parts, world.pool.figures().parts);
        assert_eq!(pool.figures().shared, world.pool.figures().shared);
        assert_eq!(pool.snapshot(&ids).unwrap().0, snapshot);
        ids.into_iter().for_each(|id| pool.free(id).unwrap());
        assert_eq!(pool.figures().parts.total(), 0);
    }
}

#[test]
fn a_load_that_does_not_fit_changes_nothing() {
    let world = world(true, false);
    let snapshot = taken(&world);
    let pool = Pool::new(crate::twin::smallest(world.pool.config().clone())).unwrap();
    assert!(matches!(pool.plan_load(&snapshot), Err(Error::OutOfBudget { .. })));
    assert_eq!(pool.revision(), 0);
}

#[test]
fn a_reload_goes_on_as_the_original_does() {
    let mut world = world(true, true);
    assert!(world.reload(&[0, 1, 2]));
    world.check();
    assert!(world.add(&[(0, 11), (1, 7), (3, 11), (4, 7)], false, true));
    assert!(world.trim(&[(0, 30), (3, 30)]));
    world.check();
    let figures = |place: usize| {
        let figures = world.pool.sequence_figures(world.live[place].0).unwrap();
        (figures.seen, figures.rows, figures.packed_rows, figures.pages, figures.shared)
    };
    assert_eq!(figures(0), figures(3));
    assert_eq!(figures(1), figures(4));
    world.end();
}

/// Sets one number of a snapshot, wherever it stands.
fn spoil(snapshot: &mut Snapshot, at: usize, value: u32) {
    let Snapshot { pages, evictions, sequences } = snapshot;
    let mut numbers: Vec<&mut u32> = pages.iter_mut().flatten().collect();
    for eviction in evictions {
        numbers.push(&mut eviction.tokens);
        numbers.extend(&mut eviction.counts);
        numbers.extend(eviction.positions.iter_mut().flatten());
    }
    for saved in sequences {
        numbers.extend([&mut saved.seen, &mut saved.origin]);
        numbers.extend(saved.evictions.iter_mut().flatten());
        for head in &mut saved.heads {
            numbers.extend([&mut head.rows, &mut head.prompt]);
            numbers.extend(&mut head.sink);
            numbers.extend(&mut head.packed);
            numbers.extend(&mut head.tail);
        }
    }
    let at = at % numbers.len();
    *numbers[at] = value;
}

fn plan_all(pool: &mut Pool, operation: &Operation<'_>) {
    if let Ok(step) = pool.plan(operation) {
        pool.commit(step).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A snapshot with a number or two that lie is refused, or it is one that a pool can live with.
    #[test]
    fn lies_are_refused_or_harmless(
        told in any::<bool>(),
        trimmed in any::<bool>(),
        finished in any::<bool>(),
        lies in prop::collection::vec(
            (any::<usize>(), prop_oneof![3 => 0u32..100, 1 => any::<u32>(), 1 => Just(u32::MAX)]),
            1..3,
        ),
        trim in 0u32..100,
    ) {
        let world = world(told, trimmed);
        let mut snapshot = taken(&world);
        for (at, value) in lies {
            spoil(&mut snapshot, at, value);
        }
        snapshot.sequences[1].finished[1] &= finished;
        let mut pool = Pool::new(world.pool.config().clone()).unwrap();
        if let Ok(load) = pool.plan_load(&snapshot) {
            let ids = pool.commit_load(load).unwrap();
            for id in &ids {
                pool.tables(&[*id], 0).unwrap().check(&pool, 0).unwrap();
                pool.tables(&[*id], 1).unwrap().units(3).unwrap();
            }
            let fork = pool.fork(ids[0]).unwrap();
            for id in ids.into_iter().chain([fork]) {
                let add = [Part { sequence: id, tokens: 30 }];
                plan_all(&mut pool, &Operation::Append { parts: &add, flush: true });
                plan_all(&mut pool, &Operation::Trim { parts: &[Part { sequence: id, tokens: trim }] });
                plan_all(&mut pool, &Operation::Append { parts: &add, flush: true });
                let _ = pool.positions(id, 0, 1);
                pool.tables(&[id], 0).unwrap().check(&pool, 0).unwrap();
                pool.free(id).unwrap();
            }
            assert_eq!(pool.figures().pages, [0; 3]);
            assert!(PageClass::ALL.iter().all(|class| pool.figures().shared[class.index()] == 0));
        }
    }
}
