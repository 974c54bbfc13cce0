//! A codec on the device, and what its kernels are built with.

use super::coarse;
use crate::error::{Error, Result};
use crate::gpu::{Context, Slice, Variant};
use crate::layout::{Bits, Family, Gain, MeanDomain, Metadata, PIECE, PageLayout, Profile};
use crate::nsnquant::codebook::Codebook;
use crate::nsnquant::codec::Codec;
use crate::nsnquant::hadamard::Hadamard;
use crate::nsnquant::rope::{Pairing, Rope};
use crate::shape::{Dtype, MAX_HEAD_DIM, check_count, check_head_dim};

/// Pieces that a workgroup has in hand.
const BATCH_PIECES: usize = 256;

/// A [`Codec`] whose codebook is on the device.
#[derive(Clone, Debug)]
pub struct DeviceCodec {
    codec: Codec,
    book: wgpu::Buffer,
    rope: wgpu::Buffer,
}

impl DeviceCodec {
    /// Uploads the book of a codec, f32, row by row.
    ///
    /// # Errors
    /// [`Error::DeviceLimit`] when the device allows no buffer of 11 KiB.
    pub fn new(context: &Context, codec: Codec) -> Result<Self> {
        let mut words: Vec<u32> = codec.book().values().iter().map(|v| v.to_bits()).collect();
        words.extend(coarse::words(codec.layout(), codec.book()));
        let book = context.upload_constant("wgkv codebook", bytemuck::cast_slice(&words))?;
        let words = Rope::words(codec.rope(), codec.layout().head_dim());
        let rope = context.upload_constant("wgkv rope", bytemuck::cast_slice(&words))?;
        Ok(Self { codec, book, rope })
    }

    /// The codec that it was made from.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Where codes, scales and means lie in a page, in words.
    pub fn layout(&self) -> &PageLayout {
        self.codec.layout()
    }

    /// The codec's rotary embedding as kernels bind it, also where there is none.
    pub(crate) fn rope(&self) -> Slice<'_> {
        Slice::all(&self.rope)
    }

    /// The rows of the codec's book on the device, f32, without what an encoder has beside them.
    pub(crate) fn rows(&self) -> Slice<'_> {
        let size = size_of_val(self.codec.book().values()) as u64;
        Slice { buffer: &self.book, offset: 0, size }
    }

    /// The codec's book on the device, f32, row by row, and what an encoder has beside it.
    pub fn book(&self) -> &wgpu::Buffer {
        &self.book
    }
}

/// Key scales on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKeyScales<'a> {
    /// The factors, f16 `[count, head_dim]`. Nothing checks them here: one that is not from 2^-10 to
    /// 2^10 counts as 1.
    pub values: Slice<'a>,
    /// Number of scales, one a row.
    pub count: usize,
}

impl<'a> DeviceKeyScales<'a> {
    /// What kernels bind and the last scale that they read; without scales something else that is
    /// only read.
    pub(crate) fn bound(
        scales: Option<Self>,
        head_dim: usize,
        unread: Slice<'a>,
    ) -> Result<(Slice<'a>, u32)> {
        let Some(Self { values, count }) = scales else { return Ok((unread, 0)) };
        let argument = "key scales";
        let expected = check_count(argument, &[count, head_dim])? / 2;
        let got = (values.size / 4) as usize;
        match count {
            0 => Err(Error::Empty { argument }),
            _ if got < expected => Err(Error::Length { argument, got, expected }),
            _ => Ok((values, count as u32 - 1)),
        }
    }
}

/// Every book of a [`Codebook`] on the device, for kernels that read keys and values of any schemes:
/// f32, the unit books and then the plain ones, each by its rate.
#[derive(Clone, Debug)]
pub struct DeviceCodebook {
    buffer: wgpu::Buffer,
    /// Families and rates of the books that f16 holds as they are.
    halves: Vec<(Family, Bits)>,
    /// Those whose numbers are bytes in units of 1/32.
    bytes: Vec<(Family, Bits)>,
}

impl DeviceCodebook {
    /// Families with their rates, in the order of the books.
    fn books() -> impl Iterator<Item = (Family, Bits)> {
        let unit = [Bits::One, Bits::Two].map(|bits| (Family::Unit, bits));
        unit.into_iter().chain(Bits::ALL.map(|bits| (Family::Plain, bits)))
    }

    /// Uploads a codebook.
    ///
    /// # Errors
    /// [`Error::DeviceLimit`] when the device allows no buffer of 31 KiB.
    pub fn new(context: &Context, codebook: &Codebook) -> Result<Self> {
        let mut books: Vec<f32> = Vec::new();
        let mut halves = Vec::new();
        let mut bytes = Vec::new();
        for (family, bits) in Self::books() {
            let book = codebook.book(family, bits)?;
            books.extend(book.values());
            if book.halves() {
                halves.push((family, bits));
            }
            if book.bytes() {
                bytes.push((family, bits));
            }
        }
        let buffer = context.upload("wgkv codebooks", bytemuck::cast_slice(&books))?;
        Ok(Self { buffer, halves, bytes })
    }

    /// Whether f16 holds the book of the pages of a layout as it is.
    pub(crate) fn halves(&self, layout: &PageLayout) -> bool {
        self.halves.contains(&(layout.scheme().family, layout.bits()))
    }

    /// Whether bytes in units of 1/32 hold the book of the pages of a layout as it is.
    pub(crate) fn bytes(&self, layout: &PageLayout) -> bool {
        self.bytes.contains(&(layout.scheme().family, layout.bits()))
    }

    /// The books, one behind the other.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Where the book of the pages of a layout starts, in groups of four numbers.
    pub fn first_four(&self, layout: &PageLayout) -> u32 {
        let own = (layout.scheme().family, layout.bits());
        let values = |(family, bits): (Family, Bits)| family.rows(bits) * family.width(bits);
        (Self::books().take_while(|book| *book != own).map(values).sum::<usize>() / 4) as u32
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
        ("HADAMARD_SIGNED", u32::from(hadamard.seed().is_some())),
        ("HADAMARD_SEED", hadamard.seed().unwrap_or(0)),
    ]
}

/// Groups of four words of [`Rope::words`].
pub(crate) fn rope_fours(head_dim: usize) -> u32 {
    head_dim as u32 / 4 + 1
}

/// Constants of both stages in workgroups of `lanes` invocations, for pages under key scales or not.
pub(super) fn constants(codec: &Codec, scaled: bool, lanes: u32) -> Vec<(&'static str, u32)> {
    let (layout, scheme) = (codec.layout(), codec.scheme());
    let pieces = layout.head_dim() / PIECE;
    // A multiple of 4 tokens, so that a batch of codes is whole words.
    let batch = BATCH_PIECES / pieces / 4 * 4;
    let mut constants = hadamard_constants(codec.hadamard(), lanes, batch);
    let gain = match scheme.gain {
        Gain::TokenNorm => 0,
        Gain::Unbiased => 1,
        Gain::NormPreserving => 2,
    };
    let form = match scheme.metadata {
        Metadata::Half => 0,
        Metadata::Four => 1,
        Metadata::Linear => 2,
    };
    let flag = |set| u32::from(set);
    constants.extend([
        ("ROPE", flag(codec.rope().is_some())),
        ("ROPE_FOURS", rope_fours(layout.head_dim())),
        ("HEAD_DIM", layout.head_dim() as u32),
        ("PIECES", pieces as u32),
        ("PIECES_MAGIC", 65536u32.div_ceil(pieces as u32)),
        ("BATCH", batch as u32),
        // Channels of a centroid, bits of an index, centroids, groups of four numbers in the book,
        // bytes of the indices of 8 channels.
        ("WIDTH", layout.width() as u32),
        ("INDEX_BITS", layout.index_bits() as u32),
        ("ROWS", codec.book().rows() as u32),
        ("BOOK_FOURS", coarse::fours(layout, codec.book())),
        ("COARSE", flag(coarse::serves(layout))),
        ("CODE_BYTES", (PIECE / layout.width() * layout.index_bits() / 8) as u32),
        ("SIGNS", flag(layout.signs())),
        ("PLAIN", flag(scheme.family == Family::Plain)),
        ("FORM", form),
        ("TURNED", flag(scheme.mean == MeanDomain::Hadamard)),
        ("GAIN", gain),
        ("KEY_SCALED", flag(scaled)),
    ]);
    constants
}

/// Variants at chunks of `chunk` tokens, as `variant` makes them: of every head dimension for the
/// rates of [`Profile::Compat`]; of the other profiles, with a rotary embedding, under key scales and
/// with other choices for head dimensions of every kind.
pub(super) fn covering(chunk: usize, variant: impl Fn(&Codec, bool) -> Variant) -> Vec<Variant> {
    let codebook = Codebook::builtin();
    let mut variants = Vec::new();
    let mut add = |dim, scheme, rope: bool, scaled: bool| {
        let codec = Codec::with("data", dim, scheme, chunk, codebook.clone());
        let rope = if rope { Rope::new(Pairing::Halves, &[1.0]).ok() } else { None };
        let codec = codec.and_then(|codec| codec.with_rope(rope));
        variants.extend(codec.ok().map(|codec| variant(&codec, scaled)));
    };
    for dim in (8..=MAX_HEAD_DIM).filter(|dim| check_head_dim("head_dim", *dim).is_ok()) {
        for bits in [Bits::One, Bits::Two] {
            add(dim, Profile::Compat.scheme(bits), false, false);
        }
        if [8, 64, 80, 128, 448, 512].contains(&dim) {
            for bits in Bits::ALL {
                add(dim, Profile::Tuned.scheme(bits), false, false);
                for (rope, scaled) in [(false, false), (false, true), (true, false)] {
                    add(dim, Profile::Tuned.key_scheme(bits), rope, scaled);
                }
            }
            for bits in [Bits::One, Bits::Two] {
                add(dim, Profile::Paper.scheme(bits), true, true);
                add(dim, Profile::Paper.scheme(bits), false, false);
            }
        }
    }
    let mut mixed = Profile::Compat.scheme(Bits::Two);
    mixed.metadata = Metadata::Four;
    mixed.signs = Some(1);
    add(64, mixed, false, false);
    add(64, mixed, false, true);
    mixed.bits = Bits::Three;
    mixed.family = Family::Plain;
    mixed.metadata = Metadata::Half;
    mixed.gain = Gain::Unbiased;
    mixed.mean = MeanDomain::Hadamard;
    add(96, mixed, false, false);
    variants
}

/// What kernels bind as the positions of `rows` rows; something else that is only read where the codec
/// has no rotary embedding.
pub(super) fn positions<'a>(
    codec: &DeviceCodec,
    positions: Option<Slice<'a>>,
    rows: usize,
    unread: Slice<'a>,
) -> Result<Slice<'a>> {
    if codec.codec().rope().is_none() {
        return Ok(unread);
    }
    let got = positions.map_or(0, |slice| (slice.size / 4) as usize);
    match positions {
        Some(slice) if got >= rows => Ok(slice),
        _ => Err(Error::Length { argument: "positions", got, expected: rows }),
    }
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

/// Refuses a list of the scales of pages that is too short.
pub(super) fn numbers(of: Slice<'_>, pages: usize) -> Result<()> {
    let (argument, got) = ("key scale pages", (of.size / 4) as usize);
    if got < pages { Err(Error::Length { argument, got, expected: pages }) } else { Ok(()) }
}
