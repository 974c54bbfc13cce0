//! Both paths against the judge.

use half::f16;
use wgkv::judge::attention::{Rows, Rules, attend};
use wgkv::judge::nestedkv::{Constants, budgets, keep, score};
use wgkv::judge::{from_f16, nsnquant, to_f16, widen};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::shape::Elements;

use crate::paths::{CHUNK, Evicted, PATHS, Packed, Split, attend_config, codec};
use crate::sample::{DIM, HEADS, KV_HEADS, LAYERS, Layer, QUERIES, TOKENS};

const KEEP: u32 = 1024;
/// Scores of f32 are this close to the judge's.
const SCORE: f64 = 1e-5;
/// Relative margin of a choice of a code, beyond which rounding cannot change it.
const MARGIN: f64 = 1e-5;
/// Channel of a rotated row (of rms 1), beyond which rounding cannot change its sign.
const SIGN: f64 = 1e-4;
/// Relative rms by which outputs of a whole job may differ from another path's: a token at the border
/// of the selection or a code near a tie may fall on either side.
const WHOLE: f64 = 2e-3;

fn wide(rows: &[f16]) -> Vec<f64> {
    widen(Elements::F16(rows))
}

/// Relative rms of a difference.
fn apart(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let difference = square(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    (difference / square(&mut theirs.iter().copied())).sqrt()
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// The judge's scores of each head and the positions that it keeps.
fn judged(layer: &Layer, config: &EvictConfig) -> (Vec<Vec<f64>>, Vec<Vec<u32>>) {
    let keys = wide(&layer.keys);
    let scores: Vec<Vec<f64>> = keys
        .chunks(TOKENS * DIM)
        .map(|head| score(head, DIM, &Constants::default()).score)
        .collect();
    let sinks = config.sinks as usize;
    let counts = match config.budget {
        Budget::Uniform(each) => vec![each as usize; KV_HEADS],
        Budget::Adaptive { per_head, heads } => {
            let mut pinned = scores.clone();
            pinned.iter_mut().for_each(|head| head[..sinks].fill(f64::INFINITY));
            budgets(&pinned, per_head as usize * heads, config.safeguard)
        }
    };
    let kept = scores.iter().zip(counts).map(|(head, count)| keep(head, sinks, count)).collect();
    (scores, kept)
}

/// The selection is the judge's, but for tokens whose scores lie at the border; rows are copied bit
/// for bit.
fn check_eviction(layer: &Layer, config: &EvictConfig, evicted: &Evicted) {
    let (scores, want) = judged(layer, config);
    let sinks = config.sinks as usize;
    let border = |row: usize| {
        let own = want[row].iter().filter(|p| **p as usize >= sinks);
        own.map(|p| scores[row][*p as usize]).fold(f64::INFINITY, f64::min)
    };
    let lowest = (0..KV_HEADS).map(border).fold(f64::INFINITY, f64::min);
    assert_eq!(evicted.kept.positions.len(), KV_HEADS * KEEP as usize);
    assert!(!evicted.kept.sinks_only);
    for row in 0..KV_HEADS {
        let got = evicted.kept.row(row);
        assert_eq!(got[..sinks], (0..sinks as u32).collect::<Vec<_>>(), "sinks");
        let edge = match config.budget {
            Budget::Uniform(_) => {
                assert_eq!(got.len(), KEEP as usize);
                border(row)
            }
            Budget::Adaptive { .. } => lowest,
        };
        let other = |a: &[u32], b: &[u32]| -> Vec<u32> {
            a.iter().copied().filter(|p| b.binary_search(p).is_err()).collect()
        };
        let odd = [other(got, &want[row]), other(&want[row], got)].concat();
        for p in &odd {
            let off = (scores[row][*p as usize] - edge).abs();
            assert!(off <= SCORE, "head {row}: position {p} is {off:.1e} from the border");
        }
        assert!(odd.len() <= 4, "head {row}: {} tokens at the border", odd.len());
        for (data, rows) in [(&layer.keys, &evicted.keys), (&layer.values, &evicted.values)] {
            for (at, position) in (evicted.kept.offsets[row] as usize..).zip(got) {
                let from = (row * TOKENS + *position as usize) * DIM;
                let bits = |rows: &[f16]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&rows[at * DIM..][..DIM]), bits(&data[from..from + DIM]));
            }
        }
    }
}

fn book(bits: u32) -> Vec<f64> {
    let codec = codec(bits);
    doubles(codec.codebook().rows(codec.layout().bits()))
}

/// Codes equal the judge's wherever the margin exceeds rounding, scales and means to one step of
/// f16. Returns the number of codes and of those that differ.
fn check_pages(rows: &[f16], starts: &[u32], pages: &[u32], bits: u32) -> [usize; 2] {
    let (rows, book) = (wide(rows), book(bits));
    let words = codec(bits).layout().words();
    assert_eq!(pages.len(), starts.len() * words);
    let mut counts = [0; 2];
    for (page, start) in pages.chunks(words).zip(starts) {
        let from = *start as usize * DIM;
        let want = nsnquant::encode(&rows[from..from + CHUNK * DIM], DIM, bits, &book);
        let got = nsnquant::unpack(page, DIM, bits, CHUNK);
        for (i, margin) in want.margin.iter().enumerate() {
            let differs = got.idx[i] != want.chunk.idx[i];
            assert!(!differs || *margin <= MARGIN, "piece {i}, margin {margin:e}");
            counts[0] += 1;
            counts[1] += usize::from(differs);
        }
        for (i, mask) in got.signs.iter().enumerate() {
            let odd = mask ^ want.chunk.signs[i];
            for channel in (0..8).filter(|c| odd >> c & 1 == 1) {
                let value = want.rotated[8 * i + channel];
                assert!(value.abs() <= SIGN, "piece {i}, sign of {value:e}");
            }
            counts[0] += 1;
            counts[1] += usize::from(odd != 0);
        }
        let metadata =
            [(&got.s1, &want.chunk.s1), (&got.s2, &want.chunk.s2), (&got.o, &want.chunk.o)];
        for (got, want) in metadata {
            for (got, want) in got.iter().zip(want) {
                // Half a step, and a little for the rounding before.
                let step = (want.abs() * 2f64.powi(-11)).max(2f64.powi(-25));
                assert!((got - want).abs() <= 1.05 * step + 1e-6, "{got} against {want}");
            }
        }
    }
    counts
}

/// Raw rows and decoded pages, by the judge.
fn decoded(evicted: &Evicted, packed: &Packed, bits: u32) -> Rows {
    let split = Split::new(&evicted.kept.offsets);
    let book = book(bits);
    let words = codec(bits).layout().words();
    let [raw_positions, page_positions] = split.positions(&evicted.kept);
    let mut rows = Rows::default();
    for row in 0..KV_HEADS {
        let raw = split.raw_offsets[row] as usize..split.raw_offsets[row + 1] as usize;
        let pages = split.page_offsets[row] as usize..split.page_offsets[row + 1] as usize;
        let all = |data: &[f16], words_of: &[u32]| {
            let mut out = wide(&split.raw_rows(data)[raw.start * DIM..raw.end * DIM]);
            for page in pages.clone() {
                let page = nsnquant::unpack(&words_of[page * words..][..words], DIM, bits, CHUNK);
                out.extend(nsnquant::decode(&page, DIM, &book));
            }
            out
        };
        rows.keys.push(all(&evicted.keys, &packed.key_pages));
        rows.values.push(all(&evicted.values, &packed.value_pages));
        let mut positions = raw_positions[raw.clone()].to_vec();
        positions.extend(&page_positions[pages.start * CHUNK..pages.end * CHUNK]);
        rows.positions.push(positions);
    }
    rows
}

fn judged_attention(layer: &Layer, rows: &Rows) -> (Vec<f64>, Vec<f64>) {
    let first = attend_config().causal;
    let rules = Rules { firsts: first.as_ref().map(core::slice::from_ref), ..Rules::default() };
    attend(&wide(&layer.queries), 1, HEADS, QUERIES, rows, DIM, DIM, &rules)
}

/// Outputs are the judge's on the decoded rows, within 2^-23 (16 + largest |q| |k| / sqrt d) of the
/// largest value: what rounding of logits and sums can make.
fn check_attention(layer: &Layer, rows: &Rows, packed: &Packed) {
    let (out, lse) = judged_attention(layer, rows);
    let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (query, values) in wide(&layer.queries).chunks(DIM).enumerate() {
        let row = query / QUERIES / (HEADS / KV_HEADS);
        let longest = rows.keys[row].chunks(DIM).map(norm).fold(0.0, f64::max);
        let largest = rows.values[row].iter().fold(0.0, |a: f64, v| a.max(v.abs()));
        let unit = 2f64.powi(-23) * (16.0 + norm(values) * longest / (DIM as f64).sqrt());
        let off = (f64::from(packed.lse[query]) - lse[query]).abs();
        assert!(off <= unit.max(1e-6 * lse[query].abs()), "lse of query {query} is off by {off:e}");
        for channel in query * DIM..(query + 1) * DIM {
            let off = (f64::from(packed.out[channel]) - out[channel]).abs();
            assert!(off <= unit * largest, "query {query}: {off:e} of {largest}");
        }
    }
}

/// The whole job by the judge alone.
fn judged_job(layer: &Layer, config: &EvictConfig, bits: u32) -> Vec<f64> {
    let (_, kept) = judged(layer, config);
    let book = book(bits);
    let mut offsets = vec![0];
    kept.iter().for_each(|row| offsets.push(offsets[offsets.len() - 1] + row.len() as u32));
    let split = Split::new(&offsets);
    let mut rows = Rows::default();
    for (row, kept) in kept.iter().enumerate() {
        let first = offsets[row];
        let starts =
            &split.starts[split.page_offsets[row] as usize..split.page_offsets[row + 1] as usize];
        let raw = &split.raw[split.raw_offsets[row] as usize..split.raw_offsets[row + 1] as usize];
        let order: Vec<u32> = raw
            .iter()
            .copied()
            .chain(starts.iter().flat_map(|start| *start..start + CHUNK as u32))
            .map(|at| kept[(at - first) as usize])
            .collect();
        let all = |data: &[f16]| {
            let data = wide(&data[row * TOKENS * DIM..(row + 1) * TOKENS * DIM]);
            let picked: Vec<f64> =
                order.iter().flat_map(|p| &data[*p as usize * DIM..][..DIM]).copied().collect();
            let mut out = picked[..raw.len() * DIM].to_vec();
            for chunk in picked[raw.len() * DIM..].chunks(CHUNK * DIM) {
                let mut chunk = nsnquant::encode(chunk, DIM, bits, &book).chunk;
                for part in [&mut chunk.s1, &mut chunk.s2, &mut chunk.o] {
                    part.iter_mut().for_each(|x| *x = from_f16(to_f16(*x)));
                }
                out.extend(nsnquant::decode(&chunk, DIM, &book));
            }
            out
        };
        rows.keys.push(all(&layer.keys));
        rows.values.push(all(&layer.values));
        rows.positions.push(order.clone());
    }
    judged_attention(layer, &rows).0
}

/// Attention on the cache as it came.
fn on_the_input(layer: &Layer) -> Vec<f64> {
    let mut rows = Rows::default();
    for (keys, values) in layer.keys.chunks(TOKENS * DIM).zip(layer.values.chunks(TOKENS * DIM)) {
        rows.keys.push(wide(keys));
        rows.values.push(wide(values));
        rows.positions.push((0..TOKENS as u32).collect());
    }
    judged_attention(layer, &rows).0
}

#[test]
fn the_main_job_on_the_sample_agrees_with_the_judge_on_both_paths() {
    let mut codes = [0; 2];
    for number in LAYERS {
        let layer = Layer::open(number);
        let exact = on_the_input(&layer);
        for budget in [Budget::Uniform(KEEP), Budget::Adaptive { per_head: KEEP, heads: KV_HEADS }]
        {
            let config = EvictConfig::new(budget);
            let evicted = PATHS.map(|path| path.evict(&layer, &config));
            evicted.iter().for_each(|evicted| check_eviction(&layer, &config, evicted));
            let mut errors = [0.0; 2];
            for bits in [1, 2] {
                let want = judged_job(&layer, &config, bits);
                let outputs = [0, 1].map(|i| {
                    let (path, evicted) = (PATHS[i], &evicted[i]);
                    let packed = path.pack_and_attend(&layer, evicted, bits);
                    let split = Split::new(&evicted.kept.offsets);
                    for (rows, pages) in
                        [(&evicted.keys, &packed.key_pages), (&evicted.values, &packed.value_pages)]
                    {
                        let [seen, different] = check_pages(rows, &split.starts, pages, bits);
                        codes[0] += seen;
                        codes[1] += different;
                    }
                    check_attention(&layer, &decoded(evicted, &packed, bits), &packed);
                    let out = doubles(&packed.out);
                    let off = apart(&out, &want);
                    println!(
                        "layer {number} {budget:?} {bits} bits {path:?}: {off:.1e} of the judge"
                    );
                    assert!(off <= WHOLE, "{path:?} is {off:e} from the judge's job");
                    out
                });
                assert!(apart(&outputs[1], &outputs[0]) <= WHOLE, "the paths differ");
                errors[bits as usize - 1] = apart(&outputs[0], &exact);
            }
            println!("layer {number} {budget:?}: output errors {errors:.3?} at 1 and 2 bits");
            assert!(errors[1] < errors[0] && errors[1] < 0.6, "{errors:?}");
        }
    }
    let share = codes[1] as f64 / codes[0] as f64;
    println!("{} of {} codes differ from the judge's ({share:.1e})", codes[1], codes[0]);
    assert!(share <= 1e-3, "{share}");
}
