//! Trains the codebooks that the library ships: `train_codebook -o src/nsnquant/codebook.bin`.
//!
//! Only normal samples are used, so the books suit every model (arXiv 2505.18231, section 4.2). The
//! mean cosine of fresh tokens is printed for each book. Rows of unit norm cannot tell a piece's
//! length, which bounds the cosine by E|x| / sqrt(8) = 0.969 even with exact directions.

mod train;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use train::{Book, Random, mean_cosine, train};

/// Channels of the tokens that samples are cut from.
const DIM: usize = 128;

/// Trains the two codebooks on normal samples and writes them as f32, little-endian.
#[derive(Parser)]
struct Arguments {
    /// File to write: 256 signed centroids, then 256 positive ones, 8 values each.
    #[arg(short, long)]
    output: PathBuf,
    /// Seed of the samples.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pieces of 8 channels to train on.
    #[arg(long, default_value_t = 2_097_152)]
    samples: usize,
    /// Passes over the samples.
    #[arg(long, default_value_t = 60)]
    passes: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tokens = (arguments.samples * 8).div_ceil(DIM).max(16);
    let samples = Random(arguments.seed).tokens(tokens, DIM);
    let fresh = Random(!arguments.seed).tokens(8192, DIM);
    let mut bytes = Vec::new();
    for book in [Book::Signed, Book::Magnitude] {
        let centroids = train(book, &samples, arguments.passes, threads);
        println!("{book:?}: mean cosine {:.5}", mean_cosine(book, &centroids, &fresh, DIM));
        bytes.extend(centroids.iter().flatten().flat_map(|v| v.to_le_bytes()));
    }
    match std::fs::write(&arguments.output, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", arguments.output.display());
            ExitCode::from(2)
        }
    }
}
