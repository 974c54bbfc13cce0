//! Sequences out of one paged cache and into another.

use wgkv::Error;
use wgkv::cache::pool::{PoolConfig, SequenceId};
use wgkv::cache::{Exported, cpu, gpu};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::Codebook;

use crate::support;
use crate::twin::{Twin, config, smallest};

/// Forks with shared pages, one of an evicted prompt, told or not in the second layer.
pub fn twin(config: PoolConfig, told: bool) -> Twin {
    let mut twin = Twin::new(config);
    let (a, b) = (twin.begin(1), twin.begin(2));
    twin.add(&[(a, 70), (b, 45)], true, false).unwrap();
    twin.finish(a);
    if told {
        twin.evict(b, &EvictConfig::new(Budget::Uniform(24)));
    } else {
        twin.evict_untold(b, &EvictConfig::new(Budget::Uniform(24)));
    }
    twin.add(&[(a, 20), (b, 30)], false, true).unwrap();
    let c = twin.fork(b, 3);
    twin.add(&[(b, 7), (c, 12)], false, true).unwrap();
    twin.trim(&[(b, 2)]).unwrap();
    let d = twin.begin(4);
    twin.add(&[(d, 9)], true, false).unwrap();
    twin
}

pub fn ids(twin: &Twin) -> Vec<SequenceId> {
    twin.live.iter().map(|(id, _)| *id).collect()
}

/// What is exported from the device.
pub fn from_device(twin: &Twin, ids: &[SequenceId]) -> Exported {
    let exporting = support::run(|rec| twin.gpu.export(rec, ids)).unwrap();
    pollster::block_on(exporting.get()).unwrap()
}

fn slices(exported: &Exported) -> Vec<[&[u8]; 3]> {
    exported.pages.iter().map(|layer| layer.each_ref().map(Vec::as_slice)).collect()
}

#[test]
fn pages_come_back_bit_for_bit() {
    let first = twin(config(), true);
    let sequences = ids(&first);
    let host = first.cpu.export(&sequences).unwrap();
    let device = from_device(&first, &sequences);
    assert_eq!(host.snapshot, device.snapshot);
    for exported in [host, device] {
        let mut other = Twin::new(config());
        let got = other.cpu.import(&exported.snapshot, &slices(&exported)).unwrap();
        let pages = slices(&exported);
        let again = support::run(|rec| other.gpu.import(rec, &exported.snapshot, &pages)).unwrap();
        assert_eq!(got, again);
        assert_eq!(other.cpu.export(&got).unwrap(), exported);
        other.live = got.iter().zip(&first.live).map(|(id, (_, stream))| (*id, *stream)).collect();
        assert_eq!(from_device(&other, &got), exported);
        other.check_account();
        let held = other.cpu.pool().figures();
        assert_eq!(held.parts, first.cpu.pool().figures().parts);
        assert_eq!(held.shared, first.cpu.pool().figures().shared);
        other.end();
    }
    first.end();
}

#[test]
fn pages_that_are_not_those_of_the_tables_are_refused() {
    let first = twin(config(), true);
    let exported = first.cpu.export(&ids(&first)).unwrap();
    let mut other = Twin::new(config());
    let mut short = slices(&exported);
    short[1][2] = &short[1][2][4..];
    let none: &[[&[u8]; 3]] = &[];
    for pages in [&short, none] {
        let refused = other.cpu.import(&exported.snapshot, pages);
        assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}");
        let refused = support::run(|rec| other.gpu.import(rec, &exported.snapshot, pages));
        assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}");
    }
    other.check_account();
    assert_eq!(other.cpu.held_bytes(), 0);
    first.end();
}

#[test]
fn an_import_beyond_the_budget_leaves_the_cache_as_it_was() {
    let first = twin(config(), true);
    let exported = first.cpu.export(&ids(&first)).unwrap();
    let pages = slices(&exported);
    let mut other = Twin::new(smallest(config()));
    let place = other.begin(9);
    other.add(&[(place, 4)], true, false).unwrap();
    let before = from_device(&other, &ids(&other));
    let refused = other.cpu.import(&exported.snapshot, &pages);
    assert!(matches!(refused, Err(Error::OutOfBudget { .. })), "{refused:?}");
    let refused = support::run(|rec| other.gpu.import(rec, &exported.snapshot, &pages));
    assert!(matches!(refused, Err(Error::OutOfBudget { .. })), "{refused:?}");
    other.check_account();
    other.check(place);
    assert_eq!(from_device(&other, &ids(&other)), before);
    other.end();
    first.end();
}

#[test]
fn empty_slabs_make_room() {
    let first = twin(config(), true);
    let exported = first.cpu.export(&ids(&first)).unwrap();
    let pages = slices(&exported);
    let budget = first.cpu.held_bytes();
    let book = Codebook::builtin();
    let small = PoolConfig { byte_budget: budget, ..config() };
    let mut other = Twin {
        cpu: cpu::PagedCache::new(small.clone(), book.clone()).unwrap(),
        gpu: gpu::PagedCache::new(support::context(), small, book).unwrap(),
        live: Vec::new(),
    };
    // Raw rows that are gone again, but whose slabs are still there.
    let place = other.begin(9);
    other.add(&[(place, 200)], true, false).unwrap();
    other.free(place);
    assert!(other.cpu.held_bytes() > 0);
    let got = other.cpu.import(&exported.snapshot, &pages).unwrap();
    let again = support::run(|rec| other.gpu.import(rec, &exported.snapshot, &pages)).unwrap();
    assert_eq!(got, again);
    other.check_account();
    assert_eq!(from_device(&other, &got), exported);
    assert_eq!(other.cpu.export(&got).unwrap(), exported);
    first.end();
}
