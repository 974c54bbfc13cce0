use wgkv::Error;
use wgkv::layout::{Bits, CODEBOOK_ROWS, PIECE};
use wgkv::nsnquant::Codebook;

#[path = "../../tools/train_codebook/train.rs"]
mod train;

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
