//! The paged cache on both paths.

use wgkv::cache::pool::PoolConfig;
use wgkv::layout::pool::PageClass;
use wgkv::layout::{Bits, Profile};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::{Pairing, Rope};

use crate::twin::{Twin, config};

#[test]
fn lives_of_sequences_are_the_same_on_both_paths() {
    let mut twin = Twin::new(config());
    let (a, b) = (twin.begin(1), twin.begin(2));
    twin.add(&[(a, 30), (b, 3)], true, false).unwrap();
    twin.add(&[(b, 50), (a, 41)], true, false).unwrap();
    twin.check(a);
    twin.finish(a);
    twin.check(a);
    twin.evict(b, &EvictConfig::new(Budget::Uniform(20)));
    twin.check(b);
    let c = twin.fork(b, 2);
    for tokens in [1, 1, 5, 17, 1] {
        twin.add(&[(a, tokens), (b, 2 * tokens)], false, true).unwrap();
    }
    (a..=c).for_each(|place| twin.check(place));
    twin.add(&[(c, 9), (a, 30)], false, false).unwrap();
    twin.check(c);
    twin.flush(&[a, c]);
    (a..=c).for_each(|place| twin.check(place));
    twin.trim(&[(a, 2), (c, 1)]).unwrap();
    (a..=c).for_each(|place| twin.check(place));
    // Into packed chunks: some rows come back as they decode.
    let seen = [a, c].map(|place| twin.cpu.pool().seen(twin.live[place].0).unwrap());
    twin.trim(&[(a, 40), (c, 30)]).unwrap();
    twin.check(b);
    for (place, seen) in [a, c].into_iter().zip(seen) {
        twin.check_rows(place, &|position| position < 4 || position >= seen);
        twin.add(&[(place, 3)], false, true).unwrap();
    }
    (a..=c).for_each(|place| twin.check_rows(place, &|position| position < 4));
    twin.end();
}

#[test]
fn adaptive_budgets_come_as_a_future() {
    let mut twin = Twin::new(PoolConfig { heads: 3, ..config() });
    let place = twin.begin(5);
    twin.add(&[(place, 100)], true, false).unwrap();
    let budget = Budget::Adaptive { per_head: 37, heads: 3 };
    twin.evict(place, &EvictConfig::new(budget));
    twin.check(place);
    let id = twin.live[place].0;
    let rows: Vec<u32> = (0..3).map(|head| twin.cpu.pool().rows(id, 1, head).unwrap()).collect();
    assert_eq!(rows.iter().sum::<u32>(), 3 * 37);
    twin.add(&[(place, 25)], false, true).unwrap();
    twin.check(place);
    twin.end();
}

#[test]
fn members_of_a_batch_are_answered_as_alone() {
    let mut twin = Twin::new(config());
    let places = [3, 70, 0, 41].map(|tokens| {
        let place = twin.begin(tokens);
        twin.add(&[(place, tokens as u32)], true, false).unwrap();
        twin.finish(place);
        place
    });
    for tokens in [20, 1, 20, 1] {
        twin.add(&places.map(|place| (place, tokens)), false, true).unwrap();
        let together = twin.attend(&places, 2);
        for (index, place) in places.into_iter().enumerate() {
            let alone = twin.attend(&[place], 2);
            for (together, alone) in together.iter().zip(&alone) {
                let each = alone.len();
                assert_eq!(together[index * each..(index + 1) * each], alone[..]);
            }
        }
    }
    twin.end();
}

/// A prompt that is evicted, forks that part, trims: all that moves rows.
fn moves(config: PoolConfig) {
    let mut twin = Twin::new(config);
    let a = twin.begin(7);
    twin.add(&[(a, 90)], true, false).unwrap();
    twin.evict(a, &EvictConfig::new(Budget::Uniform(60)));
    twin.check(a);
    let b = twin.fork(a, 7);
    twin.add(&[(a, 7)], false, true).unwrap();
    twin.add(&[(b, 40), (a, 1)], false, true).unwrap();
    (a..=b).for_each(|place| twin.check(place));
    twin.trim(&[(b, 20)]).unwrap();
    twin.check_rows(b, &|position| position < 4);
    twin.check(a);
    twin.end();
}

#[test]
fn slabs_of_one_page() {
    let raw = config().layout().unwrap().bytes(PageClass::Raw);
    moves(PoolConfig { slab_bytes: raw, layers: 1, ..config() });
}

#[test]
fn nothing_is_packed() {
    moves(PoolConfig { bits: None, ..config() });
}

#[test]
fn rows_are_packed_by_the_tuned_profile() {
    let bits = Some((Bits::Three, Bits::Two));
    moves(PoolConfig { profile: Profile::Tuned, bits, ..config() });
}

#[test]
fn keys_are_packed_without_their_embedding() {
    let rope = Rope::with_theta(Pairing::Interleaved, 1e4, 48).ok();
    moves(PoolConfig { profile: Profile::Paper, rope, ..config() });
}
