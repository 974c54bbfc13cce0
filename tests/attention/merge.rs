//! Splits: no key is skipped or read twice, and parts make the whole.

use wgkv::shape::Dtype;

use crate::common::{Case, Data, Kind, PATHS, Shape};
use crate::packed::SLACK;

pub fn lengths() -> Vec<usize> {
    let ranges =
        [1..=34, 63..=66, 95..=97, 127..=130, 191..=193, 255..=258, 511..=513, 1023..=1027];
    ranges.into_iter().flatten().chain(4095..=4097).collect()
}

/// Keys of no weight of their own, and a value that counts them: 1 for each key in channel 0 and
/// 1 in the channel of its position.
pub fn probe(n: usize, tokens: usize, dtype: Dtype) -> Case {
    let mut shape = Shape::simple(n, 64, dtype);
    shape.tokens = tokens;
    let mut case = Case::new(shape, [Kind::Normal, Kind::Constant(0.0), Kind::Normal], 31);
    let mut values = vec![0.0; n * 64];
    for (token, row) in values.chunks_exact_mut(64).enumerate() {
        row[0] = 1.0;
        row[1 + token % 63] = 1.0;
    }
    case.values = Data::new(dtype, &values);
    case
}

/// Checks the counts of a probe.
pub fn counts(case: &Case, out: &[f32], lse: &[f32]) {
    let n = case.shape.raw[0];
    for (row, log) in out.chunks_exact(64).zip(lse) {
        assert!((f64::from(*log).exp() - n as f64).abs() <= 2e-6 * n as f64, "{n}: {log}");
        for (channel, value) in row.iter().enumerate() {
            let count = if channel == 0 { n } else { (n + 63 - channel) / 63 };
            let got = f64::from(*value) * n as f64;
            assert!((got - count as f64).abs() <= 1e-3, "{n}, channel {channel}: {got}");
        }
    }
}

#[test]
fn every_key_is_read_once() {
    for n in lengths() {
        for (tokens, dtype) in [(1, Dtype::F16), (5, Dtype::F16), (1, Dtype::F32)] {
            let case = probe(n, tokens, dtype);
            for path in PATHS {
                let got = case.run(path);
                counts(&case, &got.out, &got.lse);
            }
        }
    }
}

#[test]
fn every_packed_key_is_read_once() {
    for (chunk, pages) in [(2, 1), (2, 300), (31, 20), (33, 17), (64, 9), (100, 7), (1024, 2)] {
        for raw in [0, 1, 40] {
            let mut shape = Shape::simple(raw, 64, Dtype::F32);
            (shape.chunk, shape.pages) = (chunk, vec![pages]);
            let kinds = [Kind::Normal, Kind::Constant(0.0), Kind::Constant(1.0)];
            let case = Case::new(shape, kinds, 32);
            let n = raw + chunk * pages;
            for path in PATHS {
                let got = case.run(path);
                assert!((f64::from(got.lse[0]).exp() - n as f64).abs() <= 2e-6 * n as f64);
                case.judge(&got, SLACK);
            }
        }
    }
}

#[test]
fn many_queries_are_answered_one_by_one() {
    let mut shape = Shape::simple(0, 64, Dtype::F16);
    (shape.batch, shape.kv_heads, shape.group, shape.tokens) = (2, 2, 3, 7);
    (shape.raw, shape.pages) = (vec![600, 40, 0, 3], vec![9, 0, 1, 12]);
    let case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Normal], 33);
    case.judge_paths(SLACK);
    let got = case.cpu();
    // The first token of every head alone gives the same bits.
    let Data::F16(queries) = &case.queries else { unreachable!() };
    let first: Vec<half::f16> =
        queries.chunks_exact(7 * 64).flat_map(|q| q[..64].to_vec()).collect();
    let mut alone = Case::new(case.shape.clone(), [Kind::Normal, Kind::Offset, Kind::Normal], 33);
    alone.shape.tokens = 1;
    alone.queries = Data::F16(first);
    let each: Vec<f32> = got.out.chunks_exact(7 * 64).flat_map(|out| out[..64].to_vec()).collect();
    assert_eq!(alone.cpu().out, each);
}

#[test]
fn more_rows_than_one_dimension_of_workgroups() {
    let mut shape = Shape::simple(0, 8, Dtype::F16);
    (shape.batch, shape.kv_heads) = (8193, 8);
    shape.raw = vec![5; 65_544];
    let mut case = Case::new(shape, [Kind::Normal, Kind::Constant(1.0), Kind::Constant(1.0)], 34);
    // The last value of the last row alone is odd.
    let Data::F16(values) = &mut case.values else { unreachable!() };
    let last = values.len() - 1;
    values[last] = half::f16::from_f32(6.0);
    for path in PATHS {
        let got = case.run(path);
        assert_eq!(got.lse.len(), 65_544);
        for (at, value) in got.out.iter().enumerate() {
            let expected = if at + 1 == got.out.len() { 2.0 } else { 1.0 };
            assert!((value - expected).abs() <= 1e-6, "{path:?} at {at}: {value}");
        }
    }
}
