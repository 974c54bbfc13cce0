//! A codec on the device, and what its kernels are built with.

use crate::error::{Error, Result};
use crate::gpu::{Context, Slice, Variant};
use crate::layout::{Bits, CODEBOOK_ROWS, Format, PIECE, PageLayout};
use crate::nsnquant::codebook::Codebook;
use crate::nsnquant::codec::Codec;
use crate::nsnquant::hadamard::Hadamard;
use crate::shape::{Dtype, MAX_HEAD_DIM, check_head_dim};

/// Invocations of a workgroup.
const LANES: u32 = 128;
/// Pieces that a workgroup has in hand: two a lane.
const BATCH_PIECES: usize = 2 * LANES as usize;

/// A [`Codec`] whose codebook is on the device.
#[derive(Clone, Debug)]
pub struct DeviceCodec {
    codec: Codec,
    book: wgpu::Buffer,
}

impl DeviceCodec {
    /// Uploads the codebook of a codec: f32 `[256, 8]`, row by row.
    ///
    /// # Errors
    /// [`Error::DeviceLimit`] when the device allows no buffer of 8 KiB; [`Error::Parameter`] for a
    /// scheme other than that of [`Profile::Compat`](crate::nsnquant::Profile::Compat).
    pub fn new(context: &Context, codec: Codec) -> Result<Self> {
        codec.check_compat("codec")?;
        let rows = codec.codebook().rows(codec.layout().bits());
        let book = context.upload_constant("wgkv codebook", bytemuck::cast_slice(rows))?;
        Ok(Self { codec, book })
    }

    /// The codec.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Shape of a page.
    pub fn layout(&self) -> &PageLayout {
        self.codec.layout()
    }

    /// The book of the codec's rate on the device: f32 `[256, 8]`, row by row.
    pub fn book(&self) -> &wgpu::Buffer {
        &self.book
    }
}

/// Both unit books of a [`Codebook`] on the device, for kernels that read keys and values of any
/// rates of [`Profile::Compat`](crate::nsnquant::Profile::Compat): f32 `[512, 8]`, the 1-bit book
/// first.
#[derive(Clone, Debug)]
pub struct DeviceCodebook {
    buffer: wgpu::Buffer,
}

impl DeviceCodebook {
    /// Uploads a codebook.
    ///
    /// # Errors
    /// [`Error::DeviceLimit`] when the device allows no buffer of 16 KiB.
    pub fn new(context: &Context, codebook: &Codebook) -> Result<Self> {
        let books = [codebook.rows(Bits::One), codebook.rows(Bits::Two)].concat();
        let buffer = context.upload("wgkv codebooks", bytemuck::cast_slice(&books))?;
        Ok(Self { buffer })
    }

    /// The books.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Where the book of the pages of a layout starts, in groups of four numbers.
    ///
    /// # Errors
    /// [`Error::Parameter`] for pages that are not packed with a unit book.
    pub fn first_four(&self, layout: &PageLayout) -> Result<u32> {
        match (layout.format() == Format::unit(layout.bits()), layout.bits()) {
            (true, Bits::One) => Ok(0),
            (true, Bits::Two) => Ok((CODEBOOK_ROWS * PIECE / 4) as u32),
            _ => Err(Error::Parameter {
                argument: "pages",
                got: layout.bits().get() as f64,
                expected: "a rate of the compat profile",
            }),
        }
    }
}

/// The constants that `wgsl/common/hadamard.wgsl` wants, for workgroups of `lanes` invocations that
/// transform `tokens` tokens at once.
pub fn hadamard_constants(
    hadamard: &Hadamard,
    lanes: u32,
    tokens: usize,
) -> Vec<(&'static str, u32)> {
    // Where the rows of H_m and of its transpose start in the fragment's table.
    let (forward, back) = match hadamard.order() {
        12 => (1, 1),
        20 => (13, 33),
        28 => (53, 53),
        _ => (0, 0),
    };
    vec![
        ("HADAMARD_LANES", lanes),
        ("HADAMARD_VALUES", (tokens * hadamard.dim()) as u32),
        ("HADAMARD_ORDER", hadamard.order() as u32),
        ("HADAMARD_RUN_LOG", hadamard.run().ilog2()),
        ("HADAMARD_FORWARD", forward),
        ("HADAMARD_BACK", back),
    ]
}

/// Constants of both stages.
pub(super) fn constants(layout: &PageLayout, hadamard: &Hadamard) -> Vec<(&'static str, u32)> {
    let pieces = layout.pieces();
    // A multiple of 4 tokens, so that a batch of codes is whole words.
    let batch = BATCH_PIECES / pieces / 4 * 4;
    let mut constants = hadamard_constants(hadamard, LANES, batch);
    constants.extend([
        ("HEAD_DIM", layout.head_dim() as u32),
        ("PIECES", pieces as u32),
        ("PIECES_MAGIC", 65536u32.div_ceil(pieces as u32)),
        ("BATCH", batch as u32),
        ("BITS", layout.bits().get() as u32),
    ]);
    constants
}

/// One variant for every head dimension and rate at chunks of `chunk` tokens, as `variant` makes it.
pub(super) fn covering(
    chunk: usize,
    variant: impl Fn(&PageLayout, &Hadamard) -> Variant,
) -> Vec<Variant> {
    let mut variants = Vec::new();
    for dim in (8..=MAX_HEAD_DIM).filter(|dim| check_head_dim("head_dim", *dim).is_ok()) {
        for bits in [Bits::One, Bits::Two] {
            let layout = PageLayout::new("data", dim, bits, chunk);
            if let (Ok(layout), Ok(hadamard)) = (layout, Hadamard::new("head_dim", dim)) {
                variants.push(variant(&layout, &hadamard));
            }
        }
    }
    variants
}

/// What a call has checked of its token rows and pages.
pub(super) struct Extent {
    pub(super) pages: u32,
    pub(super) last_start: u32,
}

/// Checks a list of `pages` pages against token rows `[total_rows, head_dim]`; `None` when there
/// are no pages.
pub(super) fn extent(
    layout: &PageLayout,
    rows: (&'static str, Slice<'_>, Dtype, usize),
    starts: Slice<'_>,
    pages: (&'static str, Slice<'_>, usize),
) -> Result<Option<Extent>> {
    let (argument, data, dtype, total_rows) = rows;
    let (pages_argument, packed, count) = pages;
    if count == 0 {
        return Ok(None);
    }
    if total_rows < layout.chunk() {
        return Err(Error::OutOfRange {
            argument: "token rows",
            got: total_rows as u64,
            min: layout.chunk() as u64,
            max: u64::from(u32::MAX),
        });
    }
    let too_many = |argument, needed| Error::DeviceLimit {
        argument,
        limit: "32-bit index",
        needed,
        allowed: u64::from(u32::MAX),
    };
    let product = |a: usize, b: usize| (a as u64).saturating_mul(b as u64);
    let values = product(total_rows, layout.head_dim());
    let words = product(count, layout.words());
    for (argument, needed) in [(argument, values), (pages_argument, words)] {
        if needed > u64::from(u32::MAX) {
            return Err(too_many(argument, needed));
        }
    }
    let holds = [
        (argument, data.size / dtype.bytes() as u64, values),
        ("starts", starts.size / 4, count as u64),
        (pages_argument, packed.size / 4, words),
    ];
    for (argument, got, expected) in holds {
        if got < expected {
            let (got, expected) = (got as usize, expected as usize);
            return Err(Error::Length { argument, got, expected });
        }
    }
    Ok(Some(Extent { pages: count as u32, last_start: (total_rows - layout.chunk()) as u32 }))
}
