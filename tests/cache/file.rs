//! Saved sequences: what is written is read again, and whatever is wrong with a file is said.

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;
use wgkv::Error;
use wgkv::cache::cpu;
use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig, Snapshot};
use wgkv::files::{Header, Saved};
use wgkv::layout::pool::{PageClass, PoolLayout};
use wgkv::layout::{Bits, Profile};
use wgkv::nsnquant::{Codebook, Rope};
use wgkv::shape::{Dtype, Elements};

use crate::pool::World;
use crate::pool_snapshot::world;

/// Bytes of the pages of the sequences of a world, of no meaning but for the positions.
pub fn pages(world: &World, snapshot: &Snapshot) -> Vec<[Cow<'static, [u8]>; 3]> {
    let layout = world.pool.layout();
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Never 0, which is what rows that nobody holds are to become.
        (state >> 24) as u8 | 1
    };
    let mut pages: Vec<[Vec<u8>; 3]> = Vec::new();
    for layer in &snapshot.pages {
        let bytes = |class: PageClass| layer[class.index()] as usize * layout.bytes(class) as usize;
        pages.push(PageClass::ALL.map(|class| (0..bytes(class)).map(|_| noise()).collect()));
    }
    for ((id, _), saved) in world.live.iter().zip(&snapshot.sequences) {
        for (layer, pages) in pages.iter_mut().enumerate() {
            let tables = world.pool.tables(&[*id], layer).unwrap();
            for head in 0..world.shape.heads {
                let state = &saved.heads[layer * world.shape.heads + head];
                let sink = state.sink.iter().map(|page| (PageClass::Sink, *page));
                let packed = state.packed.iter().map(|page| (PageClass::Packed, *page));
                let tail = state.tail.iter().map(|page| (PageClass::Raw, *page));
                let mut rows = world.memory.rows(&tables, layer, head).into_iter();
                for (class, page) in sink.chain(packed).chain(tail) {
                    let first = page as usize * layout.words(class);
                    for row in 0..layout.rows(class) {
                        let Some(model) = rows.next() else { break };
                        let at = 4 * (first + layout.positions_offset(class) + row);
                        let bytes = &mut pages[class.index()][at..at + 4];
                        bytes.copy_from_slice(&model.position.to_le_bytes());
                    }
                }
            }
        }
    }
    pages.into_iter().map(|layer| layer.map(Cow::Owned)).collect()
}

fn snapshot(world: &World) -> Snapshot {
    let ids: Vec<_> = world.live.iter().map(|(id, _)| *id).collect();
    world.pool.snapshot(&ids).unwrap().0
}

fn saved(world: &World) -> Saved<'static> {
    let snapshot = snapshot(world);
    let pages = pages(world, &snapshot);
    Saved::new(world.pool.config(), &Codebook::builtin(), snapshot, pages).unwrap()
}

fn read<'a>(bytes: &'a [u8], config: &PoolConfig) -> Result<Saved<'a>, Error> {
    Saved::read(bytes, config, &Codebook::builtin())
}

/// What is said of a file.
fn fault(bytes: &[u8], config: &PoolConfig) -> String {
    read(bytes, config).expect_err("the file is refused").to_string()
}

/// Header and data of a file, which `edit` may change; the checksum is made to fit again.
fn sealed(file: &[u8], edit: impl FnOnce(&mut serde_json::Value, &mut Vec<u8>)) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file[8 + length..].to_vec();
    let zeros = "0".repeat(32);
    header["__metadata__"]["checksum"] = zeros.clone().into();
    edit(&mut header, &mut data);
    let text = header.to_string();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(&data);
    let digits = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
    let text = text.replace(&zeros, &digits);
    bytes[8..8 + text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The words of a list of a file, changed.
fn with_words(file: &[u8], name: &str, edit: impl FnOnce(&mut [u32])) -> Vec<u8> {
    sealed(file, |header, data| {
        let place = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
        let bytes = &mut data[place(0)..place(1)];
        let mut words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        edit(&mut words);
        bytes.copy_from_slice(bytemuck::cast_slice(&words));
    })
}

fn bytes_of(pages: &[u8], layout: &PoolLayout, class: PageClass, page: u32) -> Vec<u32> {
    let size = layout.bytes(class) as usize;
    bytemuck::pod_collect_to_vec(&pages[page as usize * size..(page as usize + 1) * size])
}

#[test]
fn what_is_saved_is_read_again() {
    for (told, trimmed) in [(false, false), (true, false), (true, true)] {
        let world = world(told, trimmed);
        let saved = saved(&world);
        let bytes = saved.to_bytes();
        let mut written = Vec::new();
        assert_eq!(saved.write(&mut written).unwrap(), bytes.len() as u64);
        assert_eq!(written, bytes);
        let again = read(&bytes, world.pool.config()).unwrap();
        assert_eq!(again, saved);
        assert_eq!(again.to_bytes(), bytes);
        assert_eq!(*again.snapshot(), snapshot(&world));
        // Another reader of the format agrees.
        let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let seen = other.tensor("sequences.seen").unwrap();
        assert_eq!(seen.shape(), [world.live.len()]);
        let pages = other.tensor("layers.1.packed").unwrap();
        assert_eq!(pages.data(), saved.pages(1, PageClass::Packed));
        // A page that two sequences share is there once.
        let (id, _) = world.live[0];
        let shared = world.pool.sequence_figures(id).unwrap().shared;
        assert!(shared.iter().sum::<u64>() > 0);
        let held: u64 = world.pool.figures().pages.iter().sum();
        let there = saved.snapshot().pages.iter().flatten().map(|count| u64::from(*count));
        assert_eq!(there.sum::<u64>(), held);
    }
}

#[test]
fn no_sequences_make_a_file_too() {
    let world = World::new(crate::pool_trials::config());
    let bytes = saved(&world).to_bytes();
    let again = read(&bytes, world.pool.config()).unwrap();
    assert_eq!(again.snapshot().sequences, []);
    assert_eq!(again.snapshot().pages, [[0; 3]; 2]);
}

#[test]
fn other_shapes_of_pools() {
    let base = PoolConfig { chunk: 8, recent: 3, ..crate::pool_trials::config() };
    let rope = |theta| Rope::theta(theta, 64).ok();
    let shapes = [
        PoolConfig { rope: rope(1e4), ..base.clone() },
        PoolConfig { rope: rope(2e4), profile: Profile::Paper, ..base.clone() },
        PoolConfig { bits: None, sinks: 0, ..base.clone() },
        PoolConfig { bits: None, sinks: 5, raw: Dtype::Bf16, ..base.clone() },
        PoolConfig { bits: Some((Bits::One, Bits::Two)), sinks: 3, ..base.clone() },
        PoolConfig { head_dim_k: 96, head_dim_v: 40, heads: 1, layers: 3, ..base },
    ];
    let mut files = Vec::new();
    for config in &shapes {
        let mut world = World::new(config.clone());
        world.begin();
        assert!(world.add(&[(0, 45)], false, true));
        world.fork(0);
        assert!(world.add(&[(1, 30)], false, true));
        let saved = saved(&world);
        files.push(saved.to_bytes());
        assert_eq!(read(files.last().unwrap(), config).unwrap(), saved);
    }
    for (place, file) in files.iter().enumerate() {
        for (other, config) in shapes.iter().enumerate() {
            assert_eq!(read(file, config).is_ok(), place == other, "{place} {other}");
        }
    }
}

#[test]
fn what_no_sequence_holds_is_not_in_the_file() {
    let mut world = world(true, false);
    // The first sequence alone: its last tail pages are shared with a fork that holds more rows.
    world.live.truncate(1);
    let saved = saved(&world);
    let layout = world.pool.layout();
    let heads = world.shape.heads;
    let sequence = &saved.snapshot().sequences[0];
    let mut cleared = 0;
    for layer in 0..2 {
        for head in &sequence.heads[layer * heads..(layer + 1) * heads] {
            let behind = head.rows as usize - layout.sinks() - 8 * head.packed.len();
            let (class, live) = (PageClass::Raw, behind - 8 * (head.tail.len() - 1));
            let page = *head.tail.last().unwrap();
            let words = bytes_of(saved.pages(layer, class), layout, class, page);
            let row = layout.row_words(0);
            let zero = |words: &[u32]| words.iter().all(|word| *word == 0);
            assert!(words[..live * row].iter().all(|word| *word != 0));
            assert!(zero(&words[live * row..8 * row]), "layer {layer}");
            let values = layout.values_offset(class);
            assert!(zero(&words[values + live * row..values + 8 * row]));
            assert!(zero(&words[layout.positions_offset(class) + live..layout.words(class)]));
            cleared += 8 - live;
        }
    }
    assert!(cleared > 0);
}

#[test]
fn a_file_cut_at_every_hundredth_byte_is_refused() {
    let world = world(true, true);
    let bytes = saved(&world).to_bytes();
    let config = world.pool.config();
    let ends = (0..bytes.len()).step_by(100).chain(0..200).chain(bytes.len() - 40..bytes.len());
    for end in ends {
        let fault = fault(&bytes[..end], config);
        assert!(!fault.is_empty());
        let expected = ["truncated", "too few", "empty", "to no tensor", "damaged", "not valid"];
        assert!(expected.iter().any(|word| fault.contains(word)), "cut at {end}: {fault}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(fault(&longer, config).contains("1 bytes after the last tensor belong to none"));
}

#[test]
fn a_bit_flipped_anywhere_is_found() {
    let world = world(true, true);
    let bytes = saved(&world).to_bytes();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut spoiled = bytes.clone();
    let places = (0..8 + length).chain((8 + length..bytes.len()).step_by(997));
    for (count, place) in places.enumerate() {
        for bit in [count % 8, (count + 3) % 8] {
            spoiled[place] ^= 1 << bit;
            let refused = read(&spoiled, world.pool.config());
            assert!(matches!(refused, Err(Error::File { .. })), "bit {bit} of byte {place}");
            spoiled[place] ^= 1 << bit;
        }
    }
    // Behind the header nothing but the checksum tells.
    spoiled[8 + length + 100] ^= 1;
    let fault = fault(&spoiled, world.pool.config());
    assert!(fault.starts_with("the file is damaged: its checksum is "), "{fault}");
}

#[test]
fn each_line_of_the_metadata_is_looked_at() {
    let world = world(true, false);
    let bytes = saved(&world).to_bytes();
    let config = world.pool.config();
    let (header, _) = Header::read(&bytes).unwrap();
    let metadata: BTreeMap<_, _> = header.metadata.clone();
    assert_eq!(metadata.len(), 14);
    for (key, value) in metadata {
        let spoiled = sealed(&bytes, |header, _| {
            header["__metadata__"][&key] = format!("{value}1").into();
        });
        let fault = fault(&spoiled, config);
        assert!(fault.contains(&key), "{key}: {fault}");
        let spoiled = sealed(&bytes, |header, _| {
            header["__metadata__"].as_object_mut().unwrap().remove(&key);
        });
        let fault = self::fault(&spoiled, config);
        assert!(fault.contains(&key), "{key}: {fault}");
    }
    let more = sealed(&bytes, |header, _| header["__metadata__"]["more"] = "1".into());
    assert_eq!(
        fault(&more, config),
        "the file has the metadata more, unknown to version 1 of wgkv-sequences"
    );
    let two = sealed(&bytes, |header, _| header["__metadata__"]["version"] = "2".into());
    assert_eq!(fault(&two, config), "the file is of version 2 of wgkv-sequences, only 1 is read");
}

#[test]
fn each_tensor_is_looked_at() {
    let world = world(true, false);
    let bytes = saved(&world).to_bytes();
    let config = world.pool.config();
    let (header, _) = Header::read(&bytes).unwrap();
    for name in header.tensors.keys() {
        let renamed = sealed(&bytes, |header, _| {
            let map = header.as_object_mut().unwrap();
            let entry = map.remove(name).unwrap();
            map.insert(format!("{name}x"), entry);
        });
        assert_eq!(fault(&renamed, config), format!("{name} is missing"));
        let retyped = sealed(&bytes, |header, _| header[name]["dtype"] = "F32".into());
        assert!(fault(&retyped, config).starts_with(&format!("{name} is F32 of shape ")));
        let reshaped = sealed(&bytes, |header, _| {
            header[name]["shape"].as_array_mut().unwrap().insert(0, 1.into());
        });
        assert!(fault(&reshaped, config).starts_with(&format!("{name} is U32 of shape [1, ")));
    }
    let more = sealed(&bytes, |header, data| {
        let end = data.len();
        data.extend_from_slice(&[0; 4]);
        header["more"] =
            serde_json::json!({"dtype": "U32", "shape": [1], "data_offsets": [end, end + 4]});
    });
    assert_eq!(fault(&more, config), "more does not belong to version 1 of the format");
}

#[test]
fn pools_of_another_shape_are_named() {
    let world = world(true, false);
    let bytes = saved(&world).to_bytes();
    let base = world.pool.config();
    let others = [
        (PoolConfig { layers: 3, ..base.clone() }, "the file has layers 2, the pool has 3"),
        (PoolConfig { heads: 4, ..base.clone() }, "the file has heads 2, the pool has 4"),
        (
            PoolConfig { head_dim_k: 128, ..base.clone() },
            "the file has head_dim_k 64, the pool has 128",
        ),
        (
            PoolConfig { head_dim_v: 32, ..base.clone() },
            "the file has head_dim_v 64, the pool has 32",
        ),
        (PoolConfig { bits: None, ..base.clone() }, "the file has k_bits 2, the pool has none"),
        (
            PoolConfig { bits: Some((Bits::Two, Bits::One)), ..base.clone() },
            "the file has v_bits 2, the pool has 1",
        ),
        (
            PoolConfig { profile: Profile::Tuned, ..base.clone() },
            "the file has profile compat, the pool has tuned",
        ),
        (PoolConfig { chunk: 16, ..base.clone() }, "the file has chunk 8, the pool has 16"),
        (PoolConfig { sinks: 1, ..base.clone() }, "the file has sinks 2, the pool has 1"),
        (
            PoolConfig { raw: Dtype::Bf16, ..base.clone() },
            "the file has raw f16, the pool has bf16",
        ),
        (
            PoolConfig { rope: Rope::theta(1e4, 64).ok(), ..base.clone() },
            "the file has keys of another rotary embedding than the pool",
        ),
        (
            PoolConfig { key_scale: true, ..base.clone() },
            "the file has no key_scale, the pool has one",
        ),
    ];
    for (config, expected) in others {
        assert_eq!(fault(&bytes, &config), expected);
    }
    let builtin = Codebook::builtin();
    let turned = |bits| {
        let mut rows = builtin.rows(bits).to_vec();
        rows.rotate_left(8);
        rows
    };
    let other = Codebook::new(builtin.rows(Bits::One), &turned(Bits::Two)).unwrap();
    let refused = Saved::read(&bytes, base, &other).unwrap_err().to_string();
    assert!(refused.starts_with("the file has codebook "), "{refused}");
    // At 2 bits the book of 1 bit has no part in it.
    let other = Codebook::new(&turned(Bits::One), builtin.rows(Bits::Two)).unwrap();
    assert_eq!(Saved::read(&bytes, base, &other).unwrap(), saved(&world));
    // Where rows are packed later and what memory there is belongs to the pool, not to the file.
    let free = PoolConfig { recent: 40, byte_budget: 1, slab_bytes: 1 << 22, ..base.clone() };
    assert_eq!(read(&bytes, &free).unwrap(), saved(&world));
}

/// A cache of one head under key scales whose sequences are a fork and another of the same rows.
fn scaled(sinks: usize) -> (PoolConfig, Vec<u8>) {
    let base = crate::pool_trials::config();
    let config = PoolConfig { key_scale: true, layers: 1, heads: 1, chunk: 8, sinks, ..base };
    let mut cache = cpu::PagedCache::new(config.clone(), Codebook::builtin()).unwrap();
    let main = cache.begin();
    let rows: Vec<f32> = (0..40 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let add = |cache: &mut cpu::PagedCache, sequence| {
        let parts = [Part { sequence, tokens: 40 }];
        let step = cache.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
        let [keys, values] = [Elements::F32(&rows); 2];
        cache.apply(&step, 0, Some(cpu::IncomingRows { keys, values })).unwrap();
    };
    add(&mut cache, main);
    let fork = cache.fork(main).unwrap();
    let other = cache.begin();
    add(&mut cache, other);
    (config, cache.save(&[main, fork, other]).unwrap().to_bytes())
}

#[test]
fn key_scales_are_carried_and_looked_at() {
    for sinks in [0, 3] {
        let (config, bytes) = scaled(sinks);
        let layout = config.layout().unwrap();
        let saved = read(&bytes, &config).unwrap();
        assert_eq!(saved.to_bytes(), bytes);
        assert_eq!(saved.snapshot().pages[0][0], 2, "forks share their scale");
        let mut again = cpu::PagedCache::new(config.clone(), Codebook::builtin()).unwrap();
        let ids = again.load(&bytes).unwrap();
        assert_eq!(again.save(&ids).unwrap().to_bytes(), bytes);
        let plain = PoolConfig { key_scale: false, ..config.clone() };
        assert_eq!(fault(&bytes, &plain), "the file has key_scale yes, the pool has no");
        let bad = with_words(&bytes, "layers.0.sinks", |words| words[layout.scale_offset()] = 0);
        let said = fault(&bad, &config);
        assert!(said.starts_with("layers.0.sinks: page 0: key scale is 0"), "{said}");
        // A page that is packed under one scale is never read under another.
        let bad = with_words(&bytes, "heads.sink", |words| words[1] = 1);
        let said = fault(&bad, &config);
        assert!(said.starts_with("the key scale's page of a packed page is 1"), "{said}");
        let bad = with_words(&bytes, "heads.sink", |words| words[0] = u32::MAX);
        assert!(fault(&bad, &config).starts_with("sink pages is 0, expected 1"));
    }
}

#[test]
fn seeds_of_signs_are_carried_and_looked_at() {
    let base = PoolConfig { chunk: 8, ..crate::pool_trials::config() };
    let saved = |config: &PoolConfig| {
        let mut cache = cpu::PagedCache::new(config.clone(), Codebook::builtin()).unwrap();
        let sequence = cache.begin();
        let width = config.heads * 40 * config.head_dim_k;
        let rows: Vec<f32> = (0..width).map(|i| (i as f32 * 0.37).sin()).collect();
        let parts = [Part { sequence, tokens: 40 }];
        let step = cache.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
        for layer in 0..config.layers {
            let [keys, values] = [Elements::F32(&rows); 2];
            cache.apply(&step, layer, Some(cpu::IncomingRows { keys, values })).unwrap();
        }
        cache.save(&[sequence]).unwrap().to_bytes()
    };
    let plain = saved(&base);
    assert!(!plain.windows(7).any(|part| part == b"\"signs\""), "no signs are not said");
    let with = |seed| PoolConfig { signs: Some(seed), ..base.clone() };
    for seed in [0, 7, u32::MAX] {
        let config = with(seed);
        let bytes = saved(&config);
        assert_eq!(read(&bytes, &config).unwrap().to_bytes(), bytes);
        let mut again = cpu::PagedCache::new(config.clone(), Codebook::builtin()).unwrap();
        let ids = again.load(&bytes).unwrap();
        assert_eq!(again.save(&ids).unwrap().to_bytes(), bytes);
        let packed = |bytes: &[u8], config: &PoolConfig| {
            read(bytes, config).unwrap().pages(0, PageClass::Packed).to_vec()
        };
        assert_ne!(packed(&bytes, &config), packed(&plain, &base), "signs change the codes");
        assert_eq!(fault(&bytes, &base), format!("the file has signs {seed}, the pool has none"));
        let said = fault(&bytes, &with(8));
        assert_eq!(said, format!("the file has signs {seed}, the pool has 8"));
        assert_eq!(fault(&plain, &config), format!("the file has no signs, the pool has {seed}"));
    }
    // Where nothing is packed there is nothing to give signs.
    let raw = |signs| PoolConfig { bits: None, signs, ..base.clone() };
    assert_eq!(saved(&raw(Some(7))), saved(&raw(None)));
}

#[test]
fn foreign_files_are_named() {
    let config = crate::pool_trials::config();
    let cases: [(&[u8], &str); 5] = [
        (b"", "the file is empty, expected a safetensors file"),
        (
            b"GGUF\x03\0\0\0\0\0\0\0\0\0",
            "the file is no safetensors file, it looks like a GGUF file",
        ),
        (b"\x02\0\0\0\0\0\0\0{}", "the file names no format, expected wgkv-sequences"),
        (
            b"\x10\0\0\0\0\0\0\0{}",
            "the file claims a header of 16 bytes but holds 10 (truncated, or no ",
        ),
        (
            b"\x27\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"elsewhere\"}}",
            "the file is of the format elsewhere, expected wgkv-sequences",
        ),
    ];
    for (bytes, expected) in cases {
        let fault = fault(bytes, &config);
        assert!(fault.starts_with(expected), "{fault}");
    }
    for name in ["nsn_codebooks.safetensors", "nsn_traces.safetensors"] {
        let fault = fault(&crate::support::golden(name), &config);
        assert!(fault.contains("format"), "{fault}");
    }
}

#[test]
fn tables_that_lie_are_refused_in_spite_of_a_right_checksum() {
    let world = world(true, true);
    let bytes = saved(&world).to_bytes();
    let config = world.pool.config();
    let untouched = with_words(&bytes, "pages.tail", |_| ());
    assert_eq!(read(&untouched, config).unwrap(), saved(&world));
    for (name, value, expected) in [
        ("pages.packed", 1_000_000, "page is 1000001, expected 0 to "),
        ("pages.tail", u32::MAX - 1, "page is 4294967295, expected 0 to "),
        ("heads.sink", 77_777, "page is 77778, expected 0 to "),
        ("sequences.evictions", 9, "eviction is 10, expected 0 to 2"),
        ("sequences.finished", 2, "sequences.finished holds 2, expected 0 or 1"),
        ("sequences.seen", 79, ""),
        ("sequences.origin", 81, "origin is 81, expected 0 to 80"),
        ("heads.rows", 3, "rows is 3, expected "),
        ("heads.prompt", 1000, "prompt is 1000, expected "),
        ("heads.packed", u32::MAX, "pages.packed ends before the counts do"),
        ("heads.tail", 0, ""),
        ("evictions.told", 0, "evictions.positions holds "),
        ("evictions.counts", 0, ""),
        ("evictions.tokens", 1, ""),
        ("evictions.positions", 1, "positions[0] is 1, expected the sinks first"),
    ] {
        let lie = with_words(&bytes, name, |words| words[0] = value);
        let fault = fault(&lie, config);
        assert!(fault.starts_with(expected), "{name}: {fault}");
    }
}

#[test]
fn pages_that_say_other_positions_are_named() {
    for told in [true, false] {
        let world = world(told, false);
        let bytes = saved(&world).to_bytes();
        let layout = world.pool.layout();
        for (tensor, class, sample) in [
            ("layers.0.sinks", PageClass::Sink, 1),
            ("layers.1.packed", PageClass::Packed, 3),
            ("layers.1.raw", PageClass::Raw, 0),
        ] {
            let at = sample * layout.words(class) + layout.positions_offset(class);
            for value in [u32::MAX, 1_000_000, 0x8000_0000] {
                let lie = with_words(&bytes, tensor, |words| words[at] = value);
                let fault = fault(&lie, world.pool.config());
                let expected =
                    format!("{tensor}: row 0 of page {sample} has position {value}, expected ");
                assert!(fault.starts_with(&expected), "{fault}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever the tables of a file say, it is refused or a pool can live with it.
    #[test]
    fn lies_do_no_harm(
        told in any::<bool>(),
        lies in prop::collection::vec(
            (
                0usize..15,
                any::<prop::sample::Index>(),
                prop_oneof![0u32..100, any::<u32>(), Just(u32::MAX)],
            ),
            1..4,
        ),
    ) {
        let world = world(told, told);
        let mut bytes = saved(&world).to_bytes();
        let (header, _) = Header::read(&bytes).unwrap();
        let lists = header.tensors.keys().filter(|name| !name.starts_with("layers."));
        let lists: Vec<&String> = lists.collect();
        for (list, at, value) in lies {
            bytes = with_words(&bytes, lists[list], |words| {
                if !words.is_empty() {
                    words[at.index(words.len())] = value;
                }
            });
        }
        if let Ok(saved) = read(&bytes, world.pool.config()) {
            let mut pool = Pool::new(world.pool.config().clone()).unwrap();
            let load = pool.plan_load(saved.snapshot()).unwrap();
            for id in pool.commit_load(load).unwrap() {
                pool.tables(&[id], 1).unwrap().check(&pool, 1).unwrap();
                pool.free(id).unwrap();
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        length in prop::option::of(0u64..320),
    ) {
        let mut bytes = bytes;
        if let (Some(length), Some(start)) = (length, bytes.first_chunk_mut::<8>()) {
            *start = length.to_le_bytes();
        }
        prop_assert!(read(&bytes, &crate::pool_trials::config()).is_err());
    }

    /// Text that is put into, taken from or said twice in a header.
    #[test]
    fn changed_headers_do_no_harm(
        at in any::<prop::sample::Index>(),
        text in prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "0", "-1", "1e9", "18446744073709551615", "null",
            "\"shape\":", "\"F32\"", "\"__metadata__\":", "\"checksum\":", "\\u0000",
        ]),
        remove in 0usize..40,
    ) {
        let world = World::new(crate::pool_trials::config());
        let mut bytes = saved(&world).to_bytes();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let at = 8 + at.index(length);
        let end = (at + remove).min(8 + length);
        bytes.splice(at..end, text.bytes());
        let length = (length + text.len() - (end - at)) as u64;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let changed = read(&bytes, world.pool.config());
        prop_assert!(changed.is_err() || bytes == saved(&world).to_bytes());
    }
}
