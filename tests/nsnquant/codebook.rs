use std::collections::HashSet;

use wgkv::Error;
use wgkv::layout::{Bits, CODEBOOK_ROWS, Family, PIECE};
use wgkv::nsnquant::Codebook;

#[path = "../../tools/train_codebook/train.rs"]
mod train;

#[path = "../../tools/train_codebook/plain.rs"]
mod plain;

use plain::{SHAPES, Shape, measure};
use train::{Book, Piece, Random, mean_cosine};

const DIM: usize = 128;

fn pieces(bits: Bits) -> Vec<Piece> {
    let book = Codebook::builtin();
    book.rows(bits).chunks_exact(PIECE).map(|row| row.try_into().expect("8 channels")).collect()
}

#[test]
fn the_shipped_books_serve_fresh_normal_tokens() {
    let fresh = Random(12345).tokens(2048, DIM);
    for (bits, book, least) in
        [(Bits::One, Book::Signed, 0.8235), (Bits::Two, Book::Magnitude, 0.9385)]
    {
        let cosine = mean_cosine(book, &pieces(bits), &fresh, DIM);
        println!("{bits:?}: {cosine:.5}");
        assert!(cosine >= least, "{bits:?}: {cosine}");
    }
}

/// FNV-1a over the bits.
fn checksum<'a>(values: impl Iterator<Item = &'a f32>) -> u64 {
    values.fold(0xcbf2_9ce4_8422_2325, |sum, value| {
        (sum ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn training_is_deterministic_and_no_better_on_few_samples() {
    let samples = Random(7).tokens(512, DIM);
    let fresh = Random(12345).tokens(512, DIM);
    for (bits, book) in [(Bits::One, Book::Signed), (Bits::Two, Book::Magnitude)] {
        let alone = train::train(book, &samples, 4, 1);
        let shared = train::train(book, &samples, 4, 3);
        assert_eq!(alone, shared, "the number of threads shows");
        let sum = checksum(alone.iter().flatten());
        let expected =
            if book == Book::Signed { 0xd804_c49f_e2c3_0846 } else { 0xbf2c_7b49_28f2_0562 };
        assert_eq!(sum, expected, "{bits:?}: this host trains another book, {sum:#x}");
        let small = mean_cosine(book, &alone, &fresh, DIM);
        let shipped = mean_cosine(book, &pieces(bits), &fresh, DIM);
        assert!(shipped > small, "{bits:?}: shipped {shipped}, small {small}");
    }
}

#[test]
fn the_shipped_books_have_unit_rows() {
    let book = Codebook::builtin();
    let (signed, magnitude) = (book.rows(Bits::One), book.rows(Bits::Two));
    assert!(magnitude.iter().all(|v| *v > 0.0));
    assert_eq!(*book, Codebook::new(signed, magnitude).expect("a codebook"));
}

#[test]
fn bad_books_are_refused_by_name_and_row() {
    let book = Codebook::builtin();
    let (signed, magnitude) = (book.rows(Bits::One), book.rows(Bits::Two));
    for bad in [f32::NAN, f32::INFINITY, 2.0] {
        let mut broken = magnitude.to_vec();
        broken[77 * PIECE] = bad;
        let error = Codebook::new(signed, &broken).expect_err("a bad row");
        assert!(
            matches!(error, Error::Codebook { argument: "codebook_magnitude", row: 77, .. }),
            "{error}"
        );
    }
    let error = Codebook::new(&signed[1..], magnitude).expect_err("a short book");
    let expected = CODEBOOK_ROWS * PIECE;
    assert!(
        matches!(error, Error::Length { got, expected: e, .. } if got + 1 == e && e == expected)
    );
}

/// The plain book of a rate and its shape.
fn plain_book(bits: Bits) -> (Shape, Vec<f32>) {
    let codebook = Codebook::builtin();
    let book = codebook.book(Family::Plain, bits).expect("a book");
    (Shape { rows: book.rows(), width: book.width() }, book.values().to_vec())
}

/// Mean square errors that a numpy study measured for books of these shapes.
const STUDY: [f64; 4] = [0.319, 0.0956, 0.0292, 0.0078];

#[test]
fn the_plain_books_are_within_a_percent_of_the_best_known() {
    let fresh = Random(4242).tokens(4096, 64).concat();
    let bound = |shape: Shape| (-2.0 * shape.rate()).exp2();
    for ((bits, study), expected) in Bits::ALL.into_iter().zip(STUDY).zip(SHAPES) {
        let (shape, book) = plain_book(bits);
        assert_eq!(shape, expected);
        assert_eq!(shape.rate(), bits.get() as f64);
        let quality = measure(shape, &book, &fresh, 2);
        let normal = measure(shape, &book, &Random(99).normals(1 << 18), 2);
        println!("{bits:?}: {quality:?}, normal {normal:?}, bound {:.5}", bound(shape));
        assert!(normal.mse <= 1.04 * study, "{bits:?} {normal:?}");
        assert!(quality.mse <= 1.01 * study && quality.mse >= bound(shape), "{bits:?} {quality:?}");
        assert!(quality.cosine <= (1.0 - bound(shape)).sqrt());
        // k-means leaves an error that is orthogonal to what the codes stand for.
        assert!((quality.cosine.powi(2) + quality.mse - 1.0).abs() < 2e-3, "{bits:?} {quality:?}");
    }
}

#[test]
fn the_plain_books_are_those_that_were_trained() {
    let values: Vec<f32> = Bits::ALL.into_iter().flat_map(|bits| plain_book(bits).1).collect();
    assert_eq!(checksum(values.iter()), PLAIN_SUM, "{:#x}", checksum(values.iter()));
}

/// What lets a kernel hold rows of up to 3 bits as signed bytes and those of 4 as f16.
#[test]
fn the_plain_books_lie_on_their_grids() {
    for (bits, steps, most) in [
        (Bits::One, 32.0, 127),
        (Bits::Two, 32.0, 127),
        (Bits::Three, 32.0, 127),
        (Bits::Four, 512.0, 2047),
    ] {
        let (shape, book) = plain_book(bits);
        assert_eq!(shape.grid() * f64::from(steps), 1.0, "{bits:?}");
        for value in &book {
            let whole = (value * steps).round() as i16;
            assert!(whole.abs() <= most, "{bits:?}: {value}");
            // The bits: a whole number has one zero.
            assert_eq!((f32::from(whole) / steps).to_bits(), value.to_bits(), "{bits:?}: {value}");
        }
        let rows: HashSet<Vec<u32>> = book
            .chunks_exact(shape.width)
            .map(|row| row.iter().map(|value| value.to_bits()).collect())
            .collect();
        assert_eq!(rows.len(), shape.rows, "{bits:?}: a code that is never chosen");
    }
}

#[test]
fn training_plain_books_is_deterministic_and_no_better_on_few_samples() {
    let fresh = Random(12345).tokens(1024, DIM).concat();
    let mut sums = Vec::new();
    for (bits, shape) in Bits::ALL.into_iter().zip(SHAPES) {
        let train = |threads| {
            let mut random = Random(7);
            let samples = random.tokens(512, DIM).concat();
            plain::train(shape, &samples, 6, threads, &mut random)
        };
        let alone = train(1);
        assert_eq!(alone, train(3), "{bits:?}: the number of threads shows");
        let (small, shipped) = (
            measure(shape, &alone, &fresh, 2).mse,
            measure(shape, &plain_book(bits).1, &fresh, 2).mse,
        );
        assert!(shipped < small, "{bits:?}: shipped {shipped}, small {small}");
        sums.push(checksum(alone.iter()));
    }
    assert_eq!(sums, SMALL_SUMS, "this host trains other books: {sums:#x?}");
}

#[test]
fn rates_without_a_book_are_refused() {
    let book = Codebook::builtin();
    for bits in [Bits::Three, Bits::Four] {
        let error = book.book(Family::Unit, bits).expect_err("no book");
        assert!(matches!(error, Error::OutOfRange { argument: "bits", min: 1, max: 2, .. }));
        assert!(book.rows(bits).is_empty());
    }
    assert!(Bits::new("bits", 0).is_err() && Bits::new("bits", 5).is_err());
}

/// Sums of the shipped plain books and of small ones.
const PLAIN_SUM: u64 = 0x7142_309a_3eb7_a525;
const SMALL_SUMS: [u64; 4] =
    [0xebe8_5aa1_6caa_c325, 0x5190_c85d_9c88_7325, 0x47b1_d117_eee8_ed25, 0xba5f_45b2_3f21_cb25];
