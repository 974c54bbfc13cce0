//! Sequences of paged caches saved and loaded, between the paths and on.

use half::{bf16, f16};
use wgkv::Error;
use wgkv::cache::pool::{Keep, Operation, PoolConfig, SequenceId};
use wgkv::files::{Data, MlxLm, PromptCache, Saved};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::shape::Dtype;

use crate::file_mlx;
use crate::support;
use crate::transfer::{ids, twin};
use crate::twin::{Twin, config, row, smallest};

fn save_on_device(twin: &Twin, ids: &[SequenceId]) -> Saved<'static> {
    pollster::block_on(support::run(|rec| twin.gpu.save(rec, ids)).unwrap()).unwrap()
}

/// Puts both caches of a twin together from a file each.
fn loaded([host, device]: [&[u8]; 2], config: PoolConfig, of: &Twin) -> Twin {
    let mut twin = Twin::new(config);
    let ids = twin.cpu.load(host).unwrap();
    assert_eq!(support::run(|rec| twin.gpu.load(rec, device)).unwrap(), ids);
    twin.live = ids.iter().zip(&of.live).map(|(id, (_, stream))| (*id, *stream)).collect();
    twin.check_account();
    twin
}

/// Keys, values and positions of one layer, on both paths.
type Fetched = [(Vec<f16>, Vec<f16>, Vec<u32>); 2];

fn fetched(twin: &Twin, place: usize) -> Vec<Fetched> {
    (0..2).map(|layer| twin.fetch(&[place], layer, 200)).collect()
}

/// What two caches hold is the same on each path, bit for bit.
fn same(a: &Twin, b: &Twin) {
    let all: Vec<usize> = (0..a.live.len()).collect();
    let bits = |twin: &Twin| twin.attend(&all, 3).map(bytemuck::cast_vec::<f32, u32>);
    assert_eq!(bits(a), bits(b), "attention");
    for place in 0..a.live.len() {
        assert_eq!(fetched(a, place), fetched(b, place), "{place}");
    }
}

#[test]
fn what_is_saved_on_one_path_serves_on_the_other() {
    for told in [true, false] {
        let first = twin(config(), told);
        let sequences = ids(&first);
        let host = first.cpu.save(&sequences).unwrap();
        let device = save_on_device(&first, &sequences);
        assert_eq!(host.snapshot(), device.snapshot());
        for saved in [host, device] {
            let file = saved.to_bytes();
            // On both paths, whichever it was saved on.
            let second = loaded([&file; 2], config(), &first);
            let again = ids(&second);
            assert_eq!(second.cpu.save(&again).unwrap().to_bytes(), file);
            assert_eq!(save_on_device(&second, &again).to_bytes(), file);
            let figures = [&first, &second].map(|twin| twin.cpu.pool().figures());
            assert_eq!(figures[0].shared, figures[1].shared);
            assert!(figures[0].shared.iter().sum::<u64>() > 0);
            second.end();
        }
        first.end();
    }
}

/// The same cache twice, one of them loaded; on each path from what was saved on it.
fn pair(told: bool) -> (Twin, Twin) {
    let first = twin(config(), told);
    let sequences = ids(&first);
    let mut second = Twin::new(config());
    let got = second.cpu.load(&first.cpu.save(&sequences).unwrap().to_bytes()).unwrap();
    let file = save_on_device(&first, &sequences).to_bytes();
    assert_eq!(support::run(|rec| second.gpu.load(rec, &file)).unwrap(), got);
    second.live = got.iter().zip(&first.live).map(|(id, (_, stream))| (*id, *stream)).collect();
    (first, second)
}

#[test]
fn a_loaded_sequence_goes_on_as_the_original_does() {
    let (mut first, mut second) = pair(true);
    same(&first, &second);
    for twin in [&mut first, &mut second] {
        twin.finish(3);
        twin.add(&[(0, 1), (1, 1), (2, 1), (3, 1)], false, true).unwrap();
        twin.fork(2, 5);
        twin.add(&[(4, 19), (2, 3)], false, true).unwrap();
        twin.trim(&[(1, 9), (4, 2)]).unwrap();
        twin.add(&[(1, 40), (4, 33), (0, 17)], false, false).unwrap();
        twin.flush(&[0, 1, 4]);
        // Into the evicted prompt.
        let seen = twin.cpu.pool().seen(twin.live[2].0).unwrap();
        twin.trim(&[(2, seen - 30)]).unwrap();
        twin.add(&[(2, 25)], false, true).unwrap();
        twin.check_account();
    }
    same(&first, &second);
    let figures = [&first, &second].map(|twin| twin.cpu.pool().figures());
    assert_eq!(figures[0].parts, figures[1].parts);
    assert_eq!(figures[0].shared, figures[1].shared);
    first.end();
    second.end();
}

#[test]
fn positions_may_be_told_after_loading() {
    let (mut first, mut second) = pair(false);
    for twin in [&mut first, &mut second] {
        let id = twin.live[2].0;
        for layer in 0..2 {
            assert!(matches!(
                twin.cpu.pool().positions(id, layer, 1),
                Err(Error::PositionsUnknown { .. })
            ));
        }
        // The pages know them.
        for layer in 0..2 {
            let [(_, _, positions), _] = twin.fetch(&[2], layer, 100);
            let told: Vec<u32> =
                positions.chunks(100).flat_map(|head| head[..24].to_vec()).collect();
            twin.cpu.told(id, layer, &told).unwrap();
            twin.gpu.told(id, layer, &told).unwrap();
        }
        let seen = twin.cpu.pool().seen(id).unwrap();
        twin.trim(&[(2, seen - 20)]).unwrap();
        twin.add(&[(2, 31)], false, true).unwrap();
    }
    same(&first, &second);
    first.end();
    second.end();
}

#[test]
fn one_sequence_is_loaded_beside_others() {
    let (first, mut second) = pair(true);
    let before: Vec<_> = (0..4).map(|place| fetched(&second, place)).collect();
    let file = first.cpu.save(&[first.live[1].0]).unwrap().to_bytes();
    for stream in [7, 8] {
        let got = second.cpu.load(&file).unwrap();
        assert_eq!(support::run(|rec| second.gpu.load(rec, &file)).unwrap(), got);
        second.live.push((got[0], stream));
    }
    second.check_account();
    second.trim(&[(5, 1)]).unwrap();
    second.add(&[(5, 50), (4, 1)], false, true).unwrap();
    second.free(5);
    for (place, before) in before.iter().enumerate() {
        assert_eq!(fetched(&second, place), *before);
    }
    second.end();
    first.end();
}

#[test]
fn other_recent_windows_and_slabs_serve() {
    let first = twin(config(), true);
    // A device may have packed a chunk with another code.
    let host = first.cpu.save(&ids(&first)).unwrap().to_bytes();
    let device = save_on_device(&first, &ids(&first)).to_bytes();
    let other = PoolConfig { recent: 0, slab_bytes: 1 << 14, byte_budget: 1 << 22, ..config() };
    let mut second = loaded([&host, &device], other, &first);
    for place in 0..4 {
        assert_eq!(fetched(&first, place), fetched(&second, place));
    }
    second.add(&[(0, 1), (1, 40)], false, true).unwrap();
    second.end();
}

#[test]
fn a_broken_file_changes_nothing() {
    let (first, mut second) = pair(true);
    let file = first.cpu.save(&ids(&first)).unwrap().to_bytes();
    let revision = second.cpu.pool().revision();
    let before: Vec<_> = (0..4).map(|place| fetched(&second, place)).collect();
    for at in (0..file.len()).step_by(file.len() / 40) {
        let mut spoiled = file.clone();
        spoiled[at] ^= 0x10;
        for bytes in [&spoiled[..], &file[..at]] {
            let refused = second.cpu.load(bytes).unwrap_err();
            assert!(matches!(refused, Error::File { .. }), "{refused:?}");
            let refused = support::run(|rec| second.gpu.load(rec, bytes)).unwrap_err();
            assert!(matches!(refused, Error::File { .. }), "{refused:?}");
        }
    }
    assert_eq!(second.cpu.pool().revision(), revision);
    assert_eq!(second.gpu.pool().revision(), revision);
    for (place, before) in before.iter().enumerate() {
        assert_eq!(fetched(&second, place), *before);
    }
    let mut third = Twin::new(smallest(config()));
    assert!(matches!(third.cpu.load(&file), Err(Error::OutOfBudget { .. })));
    let refused = support::run(|rec| third.gpu.load(rec, &file));
    assert!(matches!(refused, Err(Error::OutOfBudget { .. })));
    third.check_account();
    third.end();
    first.end();
    second.end();
}

#[test]
fn sequences_that_there_are_not_cannot_be_saved() {
    let mut first = twin(config(), true);
    let gone = first.live[0].0;
    first.free(0);
    assert!(matches!(first.cpu.save(&[gone]), Err(Error::UnknownSequence { .. })));
    let refused = support::run(|rec| first.gpu.save(rec, &[gone]).map(drop));
    assert!(matches!(refused, Err(Error::UnknownSequence { .. })));
    let twice = [first.live[0].0; 2];
    assert!(matches!(first.cpu.save(&twice), Err(Error::Repeated { .. })));
    first.end();
}

/// A pool of the shape of a prompt cache.
fn pool_for(cache: &PromptCache, raw: Dtype) -> PoolConfig {
    PoolConfig {
        layers: cache.layers.len(),
        heads: cache.heads,
        head_dim_k: cache.head_dim_k,
        head_dim_v: cache.head_dim_v,
        raw,
        ..config()
    }
}

fn prompt_of(twin: &Twin, ids: &[SequenceId]) -> [PromptCache; 2] {
    let device = support::run(|rec| twin.gpu.save_prompt_cache(rec, ids)).unwrap();
    [twin.cpu.save_prompt_cache(ids).unwrap(), pollster::block_on(device).unwrap()]
}

fn load_prompt(twin: &mut Twin, cache: &PromptCache) -> Vec<SequenceId> {
    let ids = twin.cpu.load_prompt_cache(cache).unwrap();
    assert_eq!(support::run(|rec| twin.gpu.load_prompt_cache(rec, cache)).unwrap(), ids);
    twin.live.extend(ids.iter().map(|id| (*id, 0)));
    twin.check_account();
    ids
}

#[test]
fn prompt_caches_of_mlx_lm_go_in_and_out() {
    for (name, raw) in [("f16", Dtype::F16), ("bf16", Dtype::Bf16), ("layers", Dtype::F16)] {
        for (mark, version) in [("031", MlxLm::V0_31), ("032", MlxLm::V0_32)] {
            let cache = PromptCache::read(&file_mlx::file(&format!("{name}_{mark}"))).unwrap();
            let mut twin = Twin::new(pool_for(&cache, raw));
            let ids = load_prompt(&mut twin, &cache);
            assert_eq!(ids.len(), cache.batch);
            for id in &ids {
                assert_eq!(twin.cpu.pool().seen(*id).unwrap() as usize, cache.tokens);
                assert!(!twin.cpu.pool().is_finished(*id, 0).unwrap());
            }
            for mut got in prompt_of(&twin, &ids) {
                got.metadata = cache.metadata.clone();
                assert_eq!(got, cache);
                let file = got.to_bytes(version).unwrap();
                assert_eq!(PromptCache::read(&file).unwrap(), cache);
            }
            twin.end();
        }
    }
}

#[test]
fn a_prompt_cache_is_packed_and_decoded() {
    let mut cache = file_mlx::cache(Dtype::F16, 2, [2, 2, 100, 64, 32]);
    for (layer, rows) in cache.layers.iter_mut().enumerate() {
        let side = |side: u64, dim: usize| -> Data {
            let at = |at: u32| row(1, layer, (at / 100) as usize, at % 100, side, dim);
            Data::F16((0..400).flat_map(at).collect())
        };
        (rows.keys, rows.values) = (side(0, 64), side(1, 32));
    }
    let mut twin = Twin::new(pool_for(&cache, Dtype::F16));
    let ids = load_prompt(&mut twin, &cache);
    for place in 0..2 {
        let sequence = ids[place];
        let layers = 0..2;
        twin.run(&Operation::Finish { sequence, layers, keep: Keep::All }).unwrap();
    }
    let packed = twin.cpu.pool().frontier(ids[0], 1, 1).unwrap() as usize;
    assert!(packed >= 64);
    let [host, device] = prompt_of(&twin, &ids);
    for got in [&host, &device] {
        for (layer, expected) in got.layers.iter().zip(&cache.layers) {
            for (got, expected, dim) in
                [(&layer.keys, &expected.keys, 64), (&layer.values, &expected.values, 32)]
            {
                let (Data::F16(got), Data::F16(expected)) = (got, expected) else {
                    panic!("raw rows are f16");
                };
                for (place, (got, expected)) in
                    got.chunks(dim).zip(expected.chunks(dim)).enumerate()
                {
                    let token = place % 100;
                    if token < 4 || token >= 4 + packed {
                        assert_eq!(got, expected);
                        continue;
                    }
                    let norm: f32 = expected.iter().map(|x| x.to_f32().powi(2)).sum();
                    let gap = got.iter().zip(expected);
                    let gap: f32 = gap.map(|(a, b)| (a.to_f32() - b.to_f32()).powi(2)).sum();
                    assert!(gap <= 0.5 * norm, "row {place}: {gap} of {norm}");
                }
            }
        }
    }
    twin.end();
}

#[test]
fn types_are_converted_on_the_way_in() {
    for (from, raw) in
        [(Dtype::F32, Dtype::F16), (Dtype::Bf16, Dtype::F16), (Dtype::F32, Dtype::Bf16)]
    {
        // The rule's elements are exact in all types.
        let cache = file_mlx::cache(from, 1, [1, 2, 20, 16, 16]);
        let mut twin = Twin::new(pool_for(&cache, raw));
        let ids = load_prompt(&mut twin, &cache);
        for got in prompt_of(&twin, &ids) {
            assert_eq!(got, file_mlx::cache(raw, 1, [1, 2, 20, 16, 16]));
        }
        twin.end();
    }
}

#[test]
fn what_a_prompt_cache_cannot_say_is_refused_by_name() {
    let mut twin = twin(config(), true);
    let evicted = [twin.live[0].0, twin.live[1].0];
    let fault = |twin: &Twin, ids: &[SequenceId]| {
        let host = twin.cpu.save_prompt_cache(ids).unwrap_err().to_string();
        let device = support::run(|rec| twin.gpu.save_prompt_cache(rec, ids).map(drop));
        assert_eq!(device.unwrap_err().to_string(), host);
        host
    };
    assert_eq!(
        fault(&twin, &evicted[1..]),
        "layer 0, head 0 of sequence 0 holds 59 rows of 80 tokens, a prompt cache of mlx-lm holds all"
    );
    assert_eq!(
        fault(&twin, &evicted),
        "tokens of a sequence is 80, expected 90 as in the first sequence"
    );
    assert_eq!(fault(&twin, &[]), "sequences is 0, expected at least 1");
    let empty = twin.begin(6);
    assert_eq!(fault(&twin, &[twin.live[empty].0]), "tokens is 0, expected at least 1");
    twin.end();
}

#[test]
fn prompt_caches_of_another_shape_are_refused() {
    let good = file_mlx::cache(Dtype::F16, 2, [1, 2, 20, 64, 32]);
    let mut twin = Twin::new(config());
    let mut refused = |cache: &PromptCache| {
        let host = twin.cpu.load_prompt_cache(cache).unwrap_err().to_string();
        let device = support::run(|rec| twin.gpu.load_prompt_cache(rec, cache).map(drop));
        assert_eq!(device.unwrap_err().to_string(), host);
        twin.check_account();
        assert_eq!(twin.cpu.pool().figures().sequences, 0);
        host
    };
    let other = file_mlx::cache(Dtype::F16, 3, [1, 2, 20, 64, 32]);
    assert_eq!(refused(&other), "layers is 3, expected 2 as in the pool");
    let other = file_mlx::cache(Dtype::F16, 2, [1, 1, 20, 64, 32]);
    assert_eq!(refused(&other), "heads is 1, expected 2 as in the pool");
    let other = file_mlx::cache(Dtype::F16, 2, [1, 2, 20, 32, 32]);
    assert_eq!(refused(&other), "head_dim_k is 32, expected 64 as in the pool");
    let other = PromptCache { tokens: 19, ..good.clone() };
    assert_eq!(refused(&other), "keys holds 2560 elements, expected 2432");
    let other = PromptCache { batch: 0, ..good.clone() };
    assert_eq!(refused(&other), "batch is 0, expected at least 1");
    let mut mixed = good.clone();
    mixed.layers[1].values = Data::Bf16(vec![bf16::ONE; 2 * 20 * 32]);
    let device = support::run(|rec| twin.gpu.load_prompt_cache(rec, &mixed).map(drop));
    assert_eq!(device.unwrap_err().to_string(), "values is bf16, expected f16");
    let mut small = Twin::new(smallest(config()));
    let refused = small.cpu.load_prompt_cache(&good);
    assert!(matches!(refused, Err(Error::OutOfBudget { .. })), "{refused:?}");
    let refused = support::run(|rec| small.gpu.load_prompt_cache(rec, &good).map(drop));
    assert!(matches!(refused, Err(Error::OutOfBudget { .. })), "{refused:?}");
    assert_eq!(small.cpu.pool().figures().sequences, 0);
    small.end();
}

/// Sequences that an engine evicts and saves; a loaded prompt of mlx-lm is an ordinary prompt.
#[test]
fn a_prompt_cache_can_be_evicted() {
    let cache = file_mlx::cache(Dtype::F16, 2, [1, 2, 90, 64, 32]);
    let mut twin = Twin::new(config());
    let ids = load_prompt(&mut twin, &cache);
    twin.evict(0, &EvictConfig::new(Budget::Uniform(40)));
    assert_eq!(twin.cpu.pool().rows(ids[0], 1, 1).unwrap(), 40);
    let file = twin.cpu.save(&ids).unwrap().to_bytes();
    let second = loaded([&file; 2], config(), &twin);
    second.end();
    twin.end();
}
