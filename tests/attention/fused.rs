//! Attention that reads pages against attention on the rows that the pages decode to: what packing
//! costs an output is the same, whoever unpacks.

use wgkv::attention::cpu::{Attended, attend};
use wgkv::attention::{AttendConfig, CacheView, PagedAttend, Queries};
use wgkv::judge::attention::{Rules, attend as judged};
use wgkv::judge::widen;
use wgkv::nsnquant::{Codec, cpu};
use wgkv::shape::{Dtype, Elements};

use crate::common::{Case, Kind, PATHS, Path, Random, Shape};
use crate::paged;
use crate::support::chunks::degenerate;
use crate::support::schemes::named;

/// Most that the two errors may differ, of outputs that are of the size of 1.
const LIMIT: f64 = 1e-3;
const PAGES: usize = 3;
const CHUNK: usize = 64;

fn error(got: &[f32], exact: &[f64]) -> f64 {
    let square: f64 = got.iter().zip(exact).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (square / exact.iter().map(|v| v * v).sum::<f64>()).sqrt()
}

/// Rows `[tokens, dim]` of one head, whose keys have channels of unlike size and offset as a model's
/// have.
fn rows(random: &mut Random, tokens: usize, dim: usize) -> Vec<f32> {
    let offset = random.values(Kind::Normal, 1, dim);
    let size: Vec<f32> = random.values(Kind::Normal, 1, dim).iter().map(|v| v.exp()).collect();
    let noise = random.values(Kind::Normal, tokens, dim);
    noise.iter().enumerate().map(|(i, v)| 0.7 * size[i % dim] * (v + offset[i % dim])).collect()
}

/// Attention of f32 rows that lie side by side, without pages.
fn raw(shape: &Shape, queries: Elements<'_>, keys: &[f32], values: &[f32]) -> Attended {
    let tokens = (keys.len() / shape.dim_k) as u32;
    let view = CacheView {
        kv_rows: 1,
        head_dim_k: shape.dim_k,
        head_dim_v: shape.dim_v,
        raw_offsets: &[0, tokens],
        raw_keys: Elements::F32(keys),
        raw_values: Elements::F32(values),
        raw_positions: &(0..tokens).collect::<Vec<u32>>(),
        packed: None,
    };
    let (heads, head_dim) = (shape.group, shape.dim_k);
    let queries = Queries { data: queries, batch: 1, heads, tokens: shape.tokens, head_dim };
    attend(&view, &queries, &AttendConfig::default()).expect("attention")
}

/// Differences of the errors of attention in pages and on decoded rows, side by side: largest of both
/// paths, and that of the outputs themselves.
fn check(name: &str, schemes: [wgkv::layout::Scheme; 2], dims: [usize; 2]) {
    let shape = Shape {
        pages: vec![PAGES],
        raw: vec![0],
        group: 4,
        tokens: 2,
        dim_v: dims[1],
        ..Shape::simple(0, dims[0], Dtype::F32)
    };
    let mut case = Case::new(shape.clone(), [Kind::Normal; 3], 40);
    let mut random = Random(41);
    let [keys, values] = dims.map(|dim| rows(&mut random, PAGES * CHUNK, dim));
    let starts: Vec<u32> = (0..PAGES).map(|page| (page * CHUNK) as u32).collect();
    let book = wgkv::nsnquant::Codebook::builtin();
    let pack = |side: usize, rows: &[f32]| {
        let codec = Codec::with("data", dims[side], schemes[side], CHUNK, book.clone());
        let codec = codec.expect("a codec");
        let pages = cpu::encode(&codec, Elements::F32(rows), &starts).expect("pages");
        let decoded = cpu::decode(&codec, &pages).expect("rows");
        (codec, pages, decoded)
    };
    let (key_codec, key_pages, decoded_keys) = pack(0, &keys);
    let (value_codec, value_pages, decoded_values) = pack(1, &values);
    (case.key_codec, case.key_pages) = (key_codec, key_pages);
    (case.value_codec, case.value_pages) = (value_codec, value_pages);
    let doubles = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let exact_rows = wgkv::judge::attention::Rows {
        keys: vec![doubles(&keys)],
        values: vec![doubles(&values)],
        positions: vec![(0..(PAGES * CHUNK) as u32).collect()],
    };
    let rules = Rules { scale: None, cap: None, firsts: None, window: None };
    let queries = widen(case.queries.elements());
    let (exact, _) = judged(&queries, 1, 4, 2, &exact_rows, dims[0], dims[1], &rules);
    let unpacked = raw(&shape, case.queries.elements(), &decoded_keys, &decoded_values);
    let costs = error(&unpacked.out, &exact);
    for path in PATHS {
        let fused = case.run(path);
        let apart = (error(&fused.out, &exact) - costs).abs();
        let pairs = fused.out.iter().zip(&unpacked.out);
        let most = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        println!(
            "{path:?} {name} {dims:?}: error {costs:.4}, differs by {apart:.1e}, outputs by {most:.1e}"
        );
        assert!(apart <= LIMIT && most <= LIMIT, "{path:?} {name} {dims:?}: {apart} {most}");
    }
}

#[test]
fn packing_costs_outputs_the_same_whoever_unpacks() {
    let all = named();
    for (name, scheme) in &all {
        check(name, [*scheme; 2], [64, 64]);
    }
    for (number, (name, keys)) in all.iter().enumerate() {
        let (other, values) = &all[(number + 3) % all.len()];
        check(&format!("{name} / {other}"), [*keys, *values], [128, 80]);
    }
}

/// The same in pages of a pool, of sinks, packed pages and a tail.
#[test]
fn packing_costs_outputs_in_a_pool_the_same_whoever_unpacks() {
    let all = named();
    for (number, (name, keys)) in all.iter().enumerate() {
        let (other, values) = &all[if number % 2 == 0 { number } else { (number + 1) % all.len() }];
        let shape = paged::Shape {
            bits: None,
            schemes: Some([*keys, *values]),
            scaled: number % 3 == 1,
            group: 4,
            ..paged::Shape::simple(64)
        };
        let member = paged::Member { seed: 9, heads: vec![(4, PAGES, 70)] };
        let batch = paged::Batch::new(&shape, &[member], number as u64 % 2);
        let config = PagedAttend::default();
        let single = |v: &[f64]| v.iter().map(|v| *v as f32).collect::<Vec<f32>>();
        let flat = Shape { group: 4, ..Shape::simple(0, 64, Dtype::F32) };
        let unpacked = raw(
            &flat,
            batch.queries.elements(),
            &single(&batch.rows.keys[0]),
            &single(&batch.rows.values[0]),
        );
        for path in PATHS {
            let fused = batch.run(path, &config);
            let pairs = fused.out.iter().zip(&unpacked.out);
            let most = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
            println!("{path:?} {name} / {other}: outputs in pages differ by {most:.1e}");
            assert!(most <= LIMIT, "{path:?} {name} / {other}: {most}");
        }
    }
}

/// Degenerate chunks give finite outputs, within the judge's rounding of those of the decoded rows.
#[test]
fn degenerate_pages_are_attended_as_decoded() {
    let dim = 64;
    // The logits of the largest numbers are beyond f32 and held at its end: finite, but not the judge's.
    let (judged, held): (Vec<_>, Vec<_>) =
        degenerate(CHUNK, dim).into_iter().partition(|(kind, _)| *kind != "the largest numbers");
    for (chunks, judged) in [(judged, true), (held, false)] {
        attend_degenerate(&chunks, dim, judged);
    }
}

fn attend_degenerate(chunks: &[(&str, Vec<f32>)], dim: usize, judged: bool) {
    for (name, scheme) in named() {
        let codec = Codec::with("data", dim, scheme, CHUNK, wgkv::nsnquant::Codebook::builtin());
        let codec = codec.expect("a codec");
        for path in PATHS {
            // All kinds in one call on the device, a head each.
            let shape = Shape {
                kv_heads: chunks.len(),
                pages: vec![1; chunks.len()],
                raw: vec![2; chunks.len()],
                ..Shape::simple(0, dim, Dtype::F32)
            };
            let mut case = Case::new(shape, [Kind::Normal; 3], 50);
            let values: Vec<f32> = chunks.iter().flat_map(|(_, chunk)| chunk.clone()).collect();
            let starts: Vec<u32> = (0..chunks.len()).map(|p| (p * CHUNK) as u32).collect();
            let pages = cpu::encode(&codec, Elements::F32(&values), &starts).expect("pages");
            (case.key_codec, case.key_pages) = (codec.clone(), pages.clone());
            (case.value_codec, case.value_pages) = (codec.clone(), pages);
            let got = case.run(path);
            for (number, (kind, _)) in chunks.iter().enumerate() {
                let out = &got.out[number * dim..(number + 1) * dim];
                let finite = out.iter().chain(&got.lse[number..=number]).all(|v| v.is_finite());
                assert!(finite, "{path:?} {name}, {kind}: {out:?}");
            }
            println!("{path:?} {name}");
            if judged {
                case.judge(&got, crate::packed::SLACK);
            }
        }
    }
}

/// The largest chunks in the widest heads, many pages a row: no loop gives up.
#[test]
fn pages_of_1024_tokens_are_attended_whole() {
    for (number, (name, scheme)) in named().into_iter().enumerate() {
        let dim = [512, 448, 40][number % 3];
        let shape = Shape {
            pages: vec![4],
            raw: vec![3],
            chunk: 1024,
            group: 2,
            ..Shape::simple(0, dim, Dtype::F16)
        };
        let mut case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], 60);
        case.repack([scheme; 2], [Kind::Offset; 2], 61);
        let [host, device] = [case.run(Path::Cpu), case.run(Path::Gpu)];
        let apart =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let most = apart(&host.out, &device.out).max(apart(&host.lse, &device.lse));
        println!("{name} {dim}: the paths differ by {most:.1e}");
        assert!(most <= 1e-3, "{name} {dim}: {most}");
    }
}
