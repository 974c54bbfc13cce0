//! Books whose rows a first look in 8 bits cannot tell apart.

use std::sync::Arc;

use half::f16;
use wgkv::layout::{Bits, PageLayout};
use wgkv::nsnquant::{Codebook, Codec, Codes, cpu};
use wgkv::shape::Elements;

use crate::common::PATHS;
use crate::generate::{Kind, Random, rows};

const DIM: usize = 64;
const CHUNK: usize = 16;

/// The builtin books with other rows, each scaled to norm 1.
fn book(change: impl Fn(usize, &[f32]) -> Vec<f32>) -> Arc<Codebook> {
    let own = Codebook::builtin();
    let [signed, magnitude] = [Bits::One, Bits::Two].map(|bits| {
        let rows = own.rows(bits);
        let changed = (0..256).flat_map(|row| {
            let row = change(row, rows);
            let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
            row.into_iter().map(move |v| v / norm)
        });
        changed.collect::<Vec<_>>()
    });
    Arc::new(Codebook::new(&signed, &magnitude).expect("unit rows"))
}

fn row(rows: &[f32], at: usize) -> Vec<f32> {
    rows[8 * at..8 * at + 8].to_vec()
}

/// Every code by both paths, beside the score that it has and the best one there is.
fn scores(book: &Arc<Codebook>, check: impl Fn(u8, f64, f64)) {
    let data = rows(&mut Random(4), Kind::Normal, CHUNK, DIM);
    let data: Vec<f16> = data.into_iter().map(f16::from_f32).collect();
    let data = Elements::F16(&data);
    for bits in [Bits::One, Bits::Two] {
        let layout = PageLayout::new("data", DIM, bits, CHUNK).expect("a layout");
        let codec = Codec::new(layout, book.clone()).expect("a codec");
        let y = cpu::analyse(&codec, data, 0).expect("a chunk").y;
        for path in PATHS {
            let pages = path.encode(&codec, data, &[0]).expect("a page");
            let codes = Codes::unpack(&codec, &pages).expect("whole pages");
            for (piece, index) in y.chunks_exact(8).zip(codes.idx) {
                let score = |row: usize| -> f64 {
                    let target = piece.iter().map(|v| f64::from(*v));
                    let target = target.map(|v| if layout.signs() { v.abs() } else { v });
                    target.zip(codec.book().row(row as u8)).map(|(a, b)| a * f64::from(*b)).sum()
                };
                let best = (0..256).map(score).fold(f64::MIN, f64::max);
                check(index, score(usize::from(index)), best);
            }
        }
    }
}

#[test]
fn of_two_equal_rows_the_first_is_chosen() {
    let twice = book(|at, rows| row(rows, at / 2));
    scores(&twice, |index, score, best| {
        assert!(index.is_multiple_of(2), "{index}");
        assert!(score >= best - 1e-5, "{score} against {best}");
    });
}

#[test]
fn of_equal_rows_alone_the_first_is_chosen() {
    scores(&book(|_, rows| row(rows, 7)), |index, _, _| assert_eq!(index, 0));
}

#[test]
fn rows_that_are_alike_are_told_apart() {
    let alike = book(|at, rows| {
        let own = row(rows, at);
        row(rows, 7).iter().zip(own).map(|(a, b)| a + 1e-3 * b).collect()
    });
    scores(&alike, |index, score, best| {
        assert!(score >= best - 1e-5, "{index}: {score} against {best}");
    });
}
