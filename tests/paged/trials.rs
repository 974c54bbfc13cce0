//! What broke for others, on a paged cache of both paths: lengths at borders, positions, trims,
//! drafts, forks, members that come and go.

use wgkv::cache::pool::PoolConfig;
use wgkv::layout::pool::PageClass;
use wgkv::layout::{Bits, Profile};
use wgkv::nsnquant::{Pairing, Rope};
use wgkv::shape::Dtype;

use crate::attend::Ask;
use crate::laws::config;
use crate::world::{Finish, World, tell};

fn held(world: &World) -> u64 {
    use crate::twin::Twin;
    world.host.pool().figures().parts.total()
}

fn seen(world: &World, place: usize) -> u32 {
    use crate::twin::Twin;
    world.host.pool().seen(world.live[place].0).unwrap()
}

fn positions(world: &World, place: usize, layer: usize, head: usize) -> Vec<u32> {
    use crate::twin::Twin;
    world.host.pool().positions(world.live[place].0, layer, head).unwrap()
}

fn fetch(world: &mut World, places: &[u8]) {
    for layer in 0..world.shape.layers {
        world.fetch(places, layer, 1, Dtype::F16);
    }
}

/// Sequences of many lengths side by side: rows, pages, what is fetched and attention.
fn borders(config: &PoolConfig, lengths: &[u32], device: bool) {
    let mut world = if device { World::both(config) } else { World::host(config) };
    let mut parts = Vec::new();
    for tokens in lengths {
        parts.push((world.begin() as u8, *tokens));
    }
    for part in parts.chunks(200) {
        assert!(world.add(part, false, true, Dtype::F16));
    }
    world.check();
    let places: Vec<u8> = (0..lengths.len() as u8).collect();
    for (place, tokens) in lengths.iter().enumerate() {
        let behind = (*tokens as usize).saturating_sub(config.sinks + config.recent);
        let packed = behind / config.chunk * config.chunk;
        let rows = world.rows(place, 0, 0);
        assert_eq!(rows.len(), *tokens as usize);
        assert_eq!(rows.iter().filter(|row| row.packed).count(), packed);
    }
    world.attend(&places, 0, &Ask::newest(1, &[1]));
    world.fetch(&places, 0, 3, Dtype::F16);
    world.end();
}

#[test]
fn t13_lengths_at_every_border() {
    let lengths: Vec<u32> =
        (0..=130).chain(191..=193).chain(255..=257).chain(1023..=1027).collect();
    for sinks in [0, 4] {
        for recent in [0, 1, 63, 64, 65] {
            let config = PoolConfig {
                layers: 1,
                heads: 1,
                head_dim_v: 16,
                bits: Some((Bits::Two, Bits::One)),
                chunk: 64,
                sinks,
                recent,
                slab_bytes: 1 << 20,
                ..config()
            };
            borders(&config, &lengths, true);
        }
    }
}

#[test]
fn t13_numbers_of_chunks_at_every_border() {
    for (sinks, recent) in [(0, 0), (4, 65)] {
        let chunks = [1, 15, 16, 17, 113, 114, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025];
        let lengths: Vec<u32> = chunks.iter().map(|chunks| 64 * chunks + 3).collect();
        let config = PoolConfig {
            layers: 1,
            heads: 1,
            head_dim_k: 8,
            head_dim_v: 8,
            chunk: 64,
            sinks,
            recent,
            byte_budget: 1 << 30,
            slab_bytes: 4 << 20,
            ..config()
        };
        borders(&config, &lengths, false);
    }
}

#[test]
fn t18_positions_through_eviction_decoding_and_trims() {
    let config = PoolConfig { chunk: 64, recent: 16, sinks: 4, ..config() };
    let mut world = World::both(&config);
    let place = world.prompt(1, 300, Finish::Adaptive(128));
    assert_eq!(seen(&world, place), 300);
    let lengths =
        [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(l, h)| positions(&world, place, l, h).len());
    assert_eq!((lengths[0] + lengths[1], lengths[2] + lengths[3]), (256, 256));
    assert_ne!(lengths[0], lengths[1], "uneven heads");
    let before = positions(&world, place, 1, 1);
    assert!(before.windows(2).all(|pair| pair[0] < pair[1]));
    world.go_on(&[(place, 1, 5)], false);
    assert_eq!(seen(&world, place), 305);
    assert!(world.trim(&[(0, 2)]));
    assert_eq!(seen(&world, place), 303);
    // Saved and loaded, the sequence goes on as if it had not been.
    assert!(world.reload(&[0]));
    assert_eq!(seen(&world, 1), 303);
    assert_eq!(positions(&world, 1, 1, 1), positions(&world, place, 1, 1));
    world.go_on(&[(place, 1, 1), (1, 1, 1)], false);
    assert_eq!((seen(&world, place), seen(&world, 1)), (304, 304));
    world.check();
    assert_eq!(world.show(place), world.show(1));
    let after = positions(&world, place, 1, 1);
    assert_eq!(after[..before.len()], before);
    assert_eq!(after[before.len()..], [300, 301, 302, 303]);
    fetch(&mut world, &[0]);
    world.attend(&[0], 1, &Ask::newest(2, &[1]));
    world.end();
}

#[test]
fn t19_trims_of_an_evicted_prompt() {
    for (dropped, ok) in [(3, true), (17, true), (20, true), (21, false)] {
        let mut world = World::both(&PoolConfig { sinks: 0, recent: 0, ..config() });
        let place = world.prompt(4, 20, Finish::Adaptive(4));
        let before: Vec<u32> = (0..2)
            .flat_map(|layer| (0..2).map(move |head| (layer, head)))
            .map(|(l, h)| {
                positions(&world, place, l, h)
                    .iter()
                    .filter(|p| **p < 20u32.saturating_sub(dropped))
                    .count() as u32
            })
            .collect();
        assert_eq!(world.trim(&[(0, dropped)]), ok);
        world.check();
        if ok {
            let left: Vec<u32> = [(0, 0), (0, 1), (1, 0), (1, 1)]
                .map(|(layer, head)| positions(&world, place, layer, head).len() as u32)
                .to_vec();
            assert_eq!(left, before);
            assert_eq!(seen(&world, place), 20 - dropped);
        } else {
            assert_eq!(seen(&world, place), 20);
        }
        world.go_on(&[(place, 4, 2)], false);
        world.check();
        fetch(&mut world, &[0]);
        world.attend(&[0], 0, &Ask::newest(2, &[1]));
        world.end();
    }
}

#[test]
fn t20_any_number_of_tokens_at_once() {
    let splits: [&[u32]; 4] = [&[300], &[1; 300], &[63, 1, 64, 1, 171], &[5; 60]];
    for bits in [Bits::One, Bits::Two] {
        let bits = Some((bits, bits));
        let config = PoolConfig { chunk: 64, sinks: 4, recent: 16, bits, ..config() };
        let mut shown = Vec::new();
        for split in splits {
            // One token at a time on a device takes a submission each; the host shows the same.
            let mut world =
                if split.len() < 100 { World::both(&config) } else { World::host(&config) };
            let place = world.begin();
            for tokens in split {
                world.go_on(&[(place, 1, *tokens)], false);
                let raw = world.rows(place, 0, 0).iter().filter(|row| !row.packed).count();
                assert!(raw <= 4 + 16 + 63);
            }
            world.check();
            fetch(&mut world, &[0]);
            let pool = crate::twin::Twin::pool(&world.host);
            let figures = pool.sequence_figures(world.live[place].0).unwrap();
            assert!(figures.parts.total() < figures.full_bytes);
            shown.push((world.show(place).swap_remove(0), figures, held(&world)));
            world.end();
        }
        assert!(shown.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn t21_rejected_drafts() {
    for recent in [8, 0] {
        let config = PoolConfig { chunk: 64, sinks: 0, recent, ..config() };
        let (mut drafts, mut accepted) = (World::both(&config), World::both(&config));
        for world in [&mut drafts, &mut accepted] {
            world.prompt(1, 100, Finish::All);
        }
        for step in 0..50 {
            // The first of a draft is the token that stays.
            let at = 100 + step;
            let draft = tell(&drafts, Dtype::F16, &[(1, at, 5)]);
            assert!(drafts.add_rows(&[(0, 5)], false, true, &draft));
            assert!(drafts.trim(&[(0, 4)]));
            accepted.go_on(&[(0, 1, 1)], false);
        }
        drafts.check();
        accepted.check();
        assert_eq!(held(&drafts), held(&accepted));
        assert_eq!(seen(&drafts, 0), 150);
        let pages = [drafts.show(0), accepted.show(0)];
        if recent == 8 {
            assert_eq!(pages[0], pages[1]);
        } else {
            // Rows that came back from a chunk read as they decode, and nothing else differs.
            assert_eq!(pages[0][0].len(), pages[1][0].len());
            for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (ours, theirs) = (drafts.rows(0, layer, head), accepted.rows(0, layer, head));
                for (a, b) in ours.iter().zip(theirs) {
                    assert_eq!((a.position, a.packed), (b.position, b.packed));
                    let same = [0, 1].map(|side| {
                        drafts.contents.row(a.id, side) == accepted.contents.row(b.id, side)
                    });
                    assert!(a.restored > 0 || same == [true, true]);
                }
            }
        }
        drafts.end();
        accepted.end();
    }
}

#[test]
fn t22_forks_that_share_pages() {
    let config = PoolConfig { chunk: 64, sinks: 0, recent: 0, ..config() };
    let mut world = World::both(&config);
    let layout = world.contents.layout.clone();
    let bytes = |packed: u64, raw: u64| {
        4 * (packed * layout.bytes(PageClass::Packed) + raw * layout.bytes(PageClass::Raw))
    };
    let start = held(&world);
    assert_eq!(start, 0);
    let main = world.begin();
    world.go_on(&[(main, 1, 130)], false);
    assert_eq!(held(&world), bytes(2, 1));
    let (a, b) = (world.fork(main), world.fork(main));
    assert_eq!(held(&world), bytes(2, 1));
    let shown = world.show(main);
    world.go_on(&[(a, 2, 62)], false);
    world.go_on(&[(b, 3, 62)], false);
    assert_eq!(held(&world), bytes(4, 1));
    world.check();
    let other = world.show(b);
    assert!(world.trim(&[(a as u8, 100)]));
    assert_eq!(held(&world), bytes(3, 2));
    world.check();
    assert_eq!(world.show(main), shown);
    assert_eq!(world.show(b), other);
    world.free(main);
    assert_eq!(held(&world), bytes(3, 1));
    world.check();
    fetch(&mut world, &[0, 1]);
    assert_eq!(world.show(1), other);
    world.free(0);
    assert_eq!(held(&world), bytes(3, 0));
    world.check();
    assert_eq!(world.show(0), other);
    world.free(0);
    assert_eq!(held(&world), 0);
    world.end();
}

#[test]
fn t23_members_leave_join_and_are_empty() {
    let config = PoolConfig { chunk: 16, sinks: 4, recent: 8, ..config() };
    let lengths = [200u32, 1, 64, 65, 0, 130];
    let ask = |seeds: &[u64]| Ask::newest(1, seeds);
    let mut batch = World::both(&config);
    let mut stories: Vec<u64> = Vec::new();
    let join = |world: &mut World, stories: &mut Vec<u64>, story: u64, tokens: u32| {
        world.prompt(story, tokens, Finish::Adaptive(50));
        stories.push(story);
    };
    let step = |world: &mut World, stories: &[u64]| {
        let parts = stories.iter().enumerate().map(|(place, story)| (place, *story, 1));
        world.go_on(&parts.collect::<Vec<_>>(), false);
    };
    for (story, tokens) in lengths[..5].iter().enumerate() {
        join(&mut batch, &mut stories, story as u64, *tokens);
    }
    let everyone: Vec<u8> = (0..5).collect();
    // A member without tokens has no newest one, but it may ask.
    let first = Some(lengths[..5].to_vec());
    let attended = batch.attend(&everyone, 0, &Ask { first, ..ask(&stories) });
    assert!(attended.iter().all(|(_, lse)| lse.len() == 5 * 4));
    (0..3).for_each(|_| step(&mut batch, &stories));
    batch.check();
    batch.free(0);
    stories.remove(0);
    for _ in 0..70 {
        step(&mut batch, &stories);
    }
    join(&mut batch, &mut stories, 5, lengths[5]);
    (0..10).for_each(|_| step(&mut batch, &stories));
    batch.check();
    let pool = crate::twin::Twin::pool(&batch.host);
    assert!(pool.figures().parts.codes > 0);
    let together = batch.attend(&everyone, 1, &ask(&stories));
    for (place, (story, steps)) in stories.iter().zip([83, 83, 83, 83, 10]).enumerate() {
        let mut alone = World::both(&config);
        let tokens = lengths[*story as usize];
        alone.prompt(*story, tokens, Finish::Adaptive(50));
        for _ in 0..steps {
            step(&mut alone, &[*story]);
        }
        assert_eq!(batch.show(place), alone.show(0));
        let one = alone.attend(&[0], 1, &ask(&[*story]));
        for ((out, lse), (all_out, all_lse)) in one.iter().zip(&together) {
            let part =
                |all: &[f32]| all[place * all.len() / 5..(place + 1) * all.len() / 5].to_vec();
            assert_eq!((out, lse), (&part(all_out), &part(all_lse)));
        }
        alone.end();
    }
    batch.end();
}

#[test]
fn the_tuned_profile_attends_and_saves_as_any_other() {
    for bits in [(Bits::Three, Bits::Two), (Bits::One, Bits::Four)] {
        let base = PoolConfig { chunk: 16, sinks: 4, recent: 8, ..config() };
        let profile = wgkv::layout::Profile::Tuned;
        let mut world = World::both(&PoolConfig { profile, bits: Some(bits), ..base });
        let place = world.prompt(1, 90, Finish::All);
        world.go_on(&[(place, 4, 20)], false);
        world.check();
        fetch(&mut world, &[0]);
        world.attend(&[0], 0, &Ask::newest(2, &[1]));
        world.end();
    }
}

/// The published form: the whole rotary embedding is taken off packed keys, in either pairing, through
/// eviction, decoding, a trim into a packed page, forks and a file.
#[test]
fn paper_packs_keys_without_their_whole_embedding() {
    for (pairing, raw) in Pairing::ALL.into_iter().zip([Dtype::F16, Dtype::Bf16]) {
        let config = PoolConfig {
            profile: Profile::Paper,
            rope: Rope::with_theta(pairing, 1e4, 64).ok(),
            head_dim_k: 64,
            head_dim_v: 32,
            bits: Some((Bits::Two, Bits::One)),
            chunk: 16,
            sinks: 4,
            recent: 8,
            raw,
            byte_budget: 1 << 30,
            slab_bytes: 1 << 16,
            ..config()
        };
        let mut world = World::both(&config);
        let place = world.prompt(1, 90, Finish::Uniform(61));
        world.go_on(&[(place, 1, 40)], false);
        let packed = world.rows(place, 0, 1).iter().filter(|row| row.packed).count();
        assert_eq!(packed, (61 + 40 - 12) / 16 * 16);
        world.check();
        fetch(&mut world, &[0]);
        world.attend(&[0], 0, &Ask::newest(2, &[1]));
        assert!(world.trim(&[(0, 25)]));
        world.fork(place);
        world.go_on(&[(place, 1, 30)], false);
        assert!(world.reload(&[0, 1]));
        world.check();
        world.attend(&[0, 1, 2, 3], 1, &Ask::newest(1, &[1, 2]));
        world.end();
    }
}
