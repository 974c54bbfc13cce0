//! Trials taken from public bug reports of other caches.

use half::f16;
use wgkv::Error;
use wgkv::attention::AttendConfig;
use wgkv::cache::cpu;
use wgkv::judge;
use wgkv::layout::Bits;

use crate::layer::{Cache, Stream, bits, close, config, rows_at};

/// Lengths at the borders of chunks, pages and windows of 64.
fn border_lengths(first: usize, most: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = (1..=130).chain(191..=193).chain(255..=257).collect();
    lengths.extend(1023..=1027);
    let chunks =
        [1].into_iter().chain(15..=17).chain(113..=129).chain(255..=257).chain(1023..=1025);
    lengths.extend(chunks.flat_map(|chunks| {
        let full = first + 64 * chunks;
        [full - 1, full, full + 1]
    }));
    lengths.sort_unstable();
    lengths.dedup();
    lengths.retain(|n| *n <= most);
    lengths
}

/// Walks one cache through the border lengths; at each, the packed count follows the rule and raw
/// rows are the bits that came in.
fn walk(mut cache: Cache, stream: &Stream, sinks: usize, recent: usize, lengths: &[usize]) {
    let all = [0, 1].map(|side| bits(&stream.part(side, 0, stream.len())));
    let mut last = 0;
    let mut packed: [Vec<u16>; 2] = [Vec::new(), Vec::new()];
    for &len in lengths {
        cache.append(stream, last, len - last);
        last = len;
        let (keys, values, counters) = cache.show();
        let behind = 64 * (len.saturating_sub(sinks + recent) / 64);
        assert_eq!((counters.len, counters.quantized_tokens), (len, behind));
        let raw: Vec<usize> = (0..len).filter(|p| !(sinks..sinks + behind).contains(p)).collect();
        let chunks: Vec<usize> = (sinks..sinks + behind).collect();
        for (side, shown) in [(0, keys), (1, values)] {
            assert_eq!(
                rows_at(&shown, stream.rows(), len, &raw),
                rows_at(&all[side], stream.rows(), stream.len(), &raw),
                "length {len}"
            );
            let now = rows_at(&shown, stream.rows(), len, &chunks);
            assert!(now.starts_with(&packed[side]), "length {len}: a chunk changed");
            packed[side] = now;
        }
    }
}

#[test]
fn lengths_at_chunk_page_and_window_borders() {
    for sinks in [0, 4] {
        for recent in [0, 1, 63, 64, 65] {
            let deep = (sinks, recent) == (4, 64);
            let lengths = border_lengths(sinks + recent, if deep { 70_000 } else { 8_400 });
            let most = lengths.last().copied().unwrap();
            let stream = Stream::new(1, [8, 16], most, 13);
            let config = config(&stream, 64, sinks, recent);
            let [host, device] = Cache::both(&config);
            walk(host, &stream, sinks, recent, &lengths);
            if sinks == 4 && [0, 65].contains(&recent) {
                let lengths = border_lengths(sinks + recent, 1_100);
                walk(device, &stream, sinks, recent, &lengths);
            }
        }
    }
}

#[test]
fn keys_and_values_of_different_width_and_rate() {
    for (rows, dims, k_bits, v_bits) in [
        (6, [192, 128], Bits::Two, Bits::One),
        (1, [64, 256], Bits::One, Bits::Two),
        (1, [256, 64], Bits::Two, Bits::Two),
        (1, [80, 512], Bits::One, Bits::One),
    ] {
        let stream = Stream::new(rows, dims, 330, 9);
        let mut config = config(&stream, 64, 4, 16);
        (config.k_bits, config.v_bits) = (k_bits, v_bits);
        let [mut host, mut device] = Cache::both(&config);
        for cache in [&mut host, &mut device] {
            cache.append(&stream, 0, 200);
            let before = cache.show();
            assert_eq!(before.2.quantized_tokens, 128);
            let bytes =
                |d: usize, bits: Bits| (rows * 2 * (64 * d * bits.get() / 8 + 256 + 2 * d)) as u64;
            assert_eq!(before.2.compressed_key_bytes, bytes(dims[0], k_bits));
            assert_eq!(before.2.compressed_value_bytes, bytes(dims[1], v_bits));
            assert_eq!(before.2.fp16_key_bytes, (rows * 200 * dims[0] * 2) as u64);
            assert_eq!(before.2.fp16_value_bytes, (rows * 200 * dims[1] * 2) as u64);
            let fork = cache.fork();
            cache.trim(70).unwrap();
            // 130 tokens left reach into the second chunk, which goes back to raw rows.
            assert_eq!(cache.counters().quantized_tokens, 64);
            cache.append(&stream, 200, 130);
            assert_eq!(cache.counters().quantized_tokens, 192);
            assert_eq!(fork.show().0, before.0);
            assert_eq!(fork.show().1, before.1);
        }
        let (ours, theirs) = (device.show(), host.show());
        assert_eq!(ours.2, theirs.2);
        close(&ours.0, &theirs.0, dims[0]);
        close(&ours.1, &theirs.1, dims[1]);
    }
    let stream = Stream::new(1, [64, 64], 1, 9);
    let mut config = config(&stream, 64, 4, 16);
    (config.head_dim_k, config.head_dim_v) = (576, 512);
    let refused = cpu::LayerCache::new(config).unwrap_err();
    assert!(matches!(refused, Error::HeadDim { argument: "head_dim_k", got: 576 }), "{refused}");
}

#[test]
fn packed_rows_that_are_no_whole_words() {
    for (dims, chunk) in [([80, 112], 64), ([112, 80], 128)] {
        for (k_bits, v_bits) in [(Bits::One, Bits::Two), (Bits::Two, Bits::One)] {
            let stream = Stream::new(3, dims, 160, 10);
            let mut config = config(&stream, chunk, 4, 16);
            (config.k_bits, config.v_bits) = (k_bits, v_bits);
            let [mut host, _] = Cache::both(&config);
            host.append(&stream, 0, 160);
            let theirs = host.show();
            let mut first: Option<(Vec<u16>, Vec<u16>)> = None;
            for _ in 0..3 {
                let [_, mut device] = Cache::both(&config);
                device.append(&stream, 0, 160);
                let ours = device.show();
                assert_eq!(ours.2, theirs.2);
                close(&ours.0, &theirs.0, dims[0]);
                close(&ours.1, &theirs.1, dims[1]);
                // Two threads that share a word would show as runs that differ.
                let shown = (ours.0, ours.1);
                assert_eq!(first.get_or_insert_with(|| shown.clone()), &shown);
            }
        }
    }
}

#[test]
fn several_tokens_at_once_against_one_at_a_time() {
    let stream = Stream::new(2, [64, 64], 300, 20);
    let patterns: [Vec<usize>; 4] = [vec![300], vec![1; 300], vec![63, 1, 64, 1, 171], vec![5; 60]];
    for k_bits in [Bits::One, Bits::Two] {
        let mut config = config(&stream, 64, 4, 16);
        config.k_bits = k_bits;
        for path in [0, 1] {
            let ends: Vec<_> = patterns
                .iter()
                .map(|pattern| {
                    let mut cache = Cache::both(&config).into_iter().nth(path).unwrap();
                    let mut first = 0;
                    for &n in pattern {
                        cache.append(&stream, first, n);
                        first += n;
                        assert!(cache.frontier().raw() <= 4 + 16 + 63);
                    }
                    cache.show()
                })
                .collect();
            assert!(ends.iter().all(|end| end == &ends[0]));
            let counters = ends[0].2;
            assert!(counters.device_bytes < counters.fp16_key_bytes + counters.fp16_value_bytes);
        }
    }
}

#[test]
fn rejected_drafts_leave_no_trace_within_the_recent_rows() {
    let drafts = Stream::new(2, [64, 80], 350, 21);
    for (recent, exact) in [(8, true), (0, false)] {
        let config = config(&drafts, 64, 0, recent);
        for (mut drafted, mut plain) in Cache::both(&config).into_iter().zip(Cache::both(&config)) {
            for cache in [&mut drafted, &mut plain] {
                cache.append(&drafts, 0, 100);
            }
            for group in 0..50 {
                drafted.append(&drafts, 100 + 5 * group, 5);
                drafted.trim(4).unwrap();
                plain.append(&drafts, 100 + 5 * group, 1);
                assert_eq!(drafted.counters().len, plain.counters().len);
            }
            let (a, b) = (drafted.show(), plain.show());
            assert_eq!(a.2, b.2);
            if exact {
                assert_eq!((a.0, a.1), (b.0, b.1));
            }
        }
    }
}

#[test]
fn attention_on_a_cache_at_the_borders() {
    for (sinks, recent) in [(0, 0), (4, 16)] {
        let lengths = [1, 3, 4, 5, 63, 64, 65, 83, 84, 85, 127, 128, 129, 192, 255, 256, 257];
        let stream = Stream::new(4, [64, 80], 257, 14);
        let config = config(&stream, 64, sinks, recent);
        for mut cache in Cache::both(&config) {
            let mut last = 0;
            for len in lengths {
                cache.append(&stream, last, len - last);
                last = len;
                attends_as_fetched(&cache, &stream, len);
            }
            cache.trim(70).unwrap();
            attends_as_fetched(&cache, &stream, 187);
        }
    }
}

/// Attention on the cache as it is against attention, by its definition, on what a fetch shows.
fn attends_as_fetched(cache: &Cache, stream: &Stream, len: usize) {
    let (keys, values, _) = cache.show();
    let [dk, dv] = stream.dims();
    let (heads, tokens) = (4, 3);
    let queries: Vec<f16> = (0..2 * heads * tokens * dk)
        .map(|index| f16::from_f32(0.1 * ((index * index + len) as f32).sin()))
        .collect();
    for causal in [None, Some(len as u32 - 1)] {
        let settings = AttendConfig { causal, ..AttendConfig::default() };
        let (out, lse) = cache.attend(&queries, 2, heads, tokens, &settings);
        let wide =
            |bits: &[u16]| bits.iter().map(|x| f16::from_bits(*x).to_f64()).collect::<Vec<f64>>();
        for (index, (out, lse)) in out.chunks(dv).zip(lse).enumerate() {
            let (batch, head, token) =
                (index / tokens / heads, index / tokens % heads, index % tokens);
            let row = batch * 2 + head * 2 / heads;
            let span = |d: usize| row * len * d..(row + 1) * len * d;
            let positions: Vec<u32> = (0..len as u32).collect();
            let query: Vec<f64> = queries[index * dk..][..dk].iter().map(|x| x.to_f64()).collect();
            let (want, want_lse) = judge::attention::one(
                &query,
                &wide(&keys[span(dk)]),
                &wide(&values[span(dv)]),
                &positions,
                dv,
                &judge::attention::Rule {
                    scale: 1.0 / (dk as f64).sqrt(),
                    cap: None,
                    position: causal.map(|first| u64::from(first) + token as u64),
                    window: None,
                },
            );
            let norm = want.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error =
                want.iter().zip(out).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>().sqrt();
            // The fetched rows are rounded to f16, those that attention reads are not.
            assert!(error <= 5e-3 * norm + 1e-4, "length {len}: {error} of {norm}");
            assert!((want_lse - f64::from(lse)).abs() <= 1e-2, "length {len}: {want_lse} {lse}");
        }
    }
}
