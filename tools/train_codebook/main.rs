//! Trains the codebooks that the library ships: `train_codebook -o src/nsnquant/codebook.bin` and
//! `train_codebook --family plain --samples 1048576 --passes 90 -o src/nsnquant/plain.bin`.
//!
//! Only normal samples are used, so the books suit every model (arXiv 2505.18231, section 4.2). The
//! figures printed are of fresh samples. Rows of unit norm cannot tell a piece's length, which bounds
//! the cosine by E|x| / sqrt(8) = 0.969 even with exact directions; rows of any norm are bounded by
//! rate-distortion alone: a mean square error of 2^-2R at R bits, a cosine of sqrt(1 - 2^-2R).

mod plain;
mod train;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use train::{Book, Random, mean_cosine, train};

/// Channels of the tokens that samples are cut from.
const DIM: usize = 128;

/// Which books are trained.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Family {
    /// 256 signed centroids and 256 positive ones of 8 channels, of norm 1.
    Unit,
    /// For 1 to 4 bits 256 x 8, 256 x 4, 64 x 2 and 256 x 2 (rows x channels), of any norm.
    Plain,
}

/// Trains codebooks on normal samples and writes them as f32, little-endian, book after book.
#[derive(Parser)]
struct Arguments {
    /// File to write.
    #[arg(short, long)]
    output: PathBuf,
    /// Which books.
    #[arg(long, value_enum, default_value_t = Family::Unit)]
    family: Family,
    /// Seed of the samples.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pieces to train on.
    #[arg(long, default_value_t = 2_097_152)]
    samples: usize,
    /// Passes over the samples.
    #[arg(long, default_value_t = 60)]
    passes: usize,
}

fn unit(arguments: &Arguments, threads: usize) -> Vec<f32> {
    let tokens = (arguments.samples * 8).div_ceil(DIM).max(16);
    let samples = Random(arguments.seed).tokens(tokens, DIM);
    let fresh = Random(!arguments.seed).tokens(8192, DIM);
    let mut values = Vec::new();
    for book in [Book::Signed, Book::Magnitude] {
        let centroids = train(book, &samples, arguments.passes, threads);
        println!("{book:?}: mean cosine {:.5}", mean_cosine(book, &centroids, &fresh, DIM));
        values.extend(centroids.iter().flatten());
    }
    values
}

fn plain(arguments: &Arguments, threads: usize) -> Vec<f32> {
    let mut values = Vec::new();
    for shape in plain::SHAPES {
        let mut random = Random(arguments.seed);
        let tokens = (arguments.samples * shape.width).div_ceil(DIM).max(16);
        let samples = random.tokens(tokens, DIM).concat();
        let book = plain::train(shape, &samples, arguments.passes, threads, &mut random);
        let bound = (-2.0 * shape.rate()).exp2();
        println!(
            "{} bits, {} x {}: bounds of a mean square error of {bound:.5} and a cosine of {:.5}",
            shape.rate(),
            shape.rows,
            shape.width,
            (1.0 - bound).sqrt(),
        );
        for dim in [64, 128, 256] {
            let fresh = Random(!arguments.seed).tokens((1 << 22) / dim, dim).concat();
            let quality = plain::measure(shape, &book, &fresh, threads);
            println!("  tokens of {dim}: {:.5} and {:.5}", quality.mse, quality.cosine);
        }
        let fresh = Random(!arguments.seed).normals(1 << 22);
        let quality = plain::measure(shape, &book, &fresh, threads);
        println!("  normal numbers: {:.5} and {:.5}", quality.mse, quality.cosine);
        values.extend(book);
    }
    values
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let values = match arguments.family {
        Family::Unit => unit(&arguments, threads),
        Family::Plain => plain(&arguments, threads),
    };
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    match std::fs::write(&arguments.output, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", arguments.output.display());
            ExitCode::from(2)
        }
    }
}
