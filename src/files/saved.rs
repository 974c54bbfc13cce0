//! Sequences of a paged cache in a file.
//!
//! The format `wgkv-sequences`, version 1, is a safetensors file of words (U32, little-endian). `S`
//! sequences of `L` layers of `H` KV heads share `E` evictions; 4294967295 stands for none.
//!
//! | tensor | shape | what |
//! |---|---|---|
//! | `layers.<i>.sinks`, `.packed`, `.raw` | `[pages, words]` | pages ([`PoolLayout`]), each once, however many sequences share it |
//! | `sequences.seen`, `sequences.origin` | `[S]` | next position; position from which on every head holds every row |
//! | `sequences.finished` | `[S, L]` | 1 where the prompt is finished |
//! | `sequences.evictions` | `[S, L]` | the eviction of the layer's prompt |
//! | `heads.rows`, `heads.prompt` | `[S, L, H]` | rows held, in all and before the origin |
//! | `heads.sink` | `[S, L, H]` | sink page |
//! | `heads.packed`, `heads.tail` | `[S, L, H]` | numbers of packed and of tail pages |
//! | `pages.packed`, `pages.tail` | `[sum]` | the pages, head after head, by their place in the layer's list |
//! | `evictions.tokens` | `[E]` | tokens of the prompt |
//! | `evictions.counts` | `[E, H]` | rows kept |
//! | `evictions.told` | `[E]` | 1 where the positions are known |
//! | `evictions.positions` | `[sum]` | positions kept, of those that are known |
//!
//! The metadata hold `format`, `version`, the shape of the pool (`layers`, `heads`, `head_dim_k`,
//! `head_dim_v`, `profile`, `k_bits`, `v_bits`, `chunk`, `sinks`, `raw`), `codebook` (XXH3-128 of the
//! books of keys and values, or `none` where nothing is packed), `key_scale` = `yes` where packed keys
//! are under key scales, which lie in the sink pages, where keys have a rotary embedding that packed
//! pages take off `rope` (its pairing, then each inverse frequency as the 8 hexadecimal digits of an
//! f32), where channels get signs their seed `signs`, in decimal, and `checksum`: XXH3-128 of the whole file, in which the 32 digits
//! of the checksum itself count as `0`.
//!
//! Rows of a page that no sequence of the file holds are written as zeros: what other sequences left
//! in memory does not get out, and equal sequences make equal files on every path.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use half::f16;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::header::{FileDtype, Header};
use super::places::check_positions;
use super::tables::{self, List};
use super::{refuse, shown};
use crate::cache::Exported;
use crate::cache::pool::{Pool, PoolConfig, Snapshot};
use crate::error::{Error, Result};
use crate::layout::Bits;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nsnquant::{Codebook, check_factors};

/// Name of the format in the metadata.
const FORMAT: &str = "wgkv-sequences";
/// The version that is written and read.
const VERSION: &str = "1";
const CHECKSUM: &str = "checksum";
const ROPE: &str = "rope";
const NO_ROPE: &str = "none";
const KEY_SCALE: &str = "key_scale";
const SIGNS: &str = "signs";
const NO_SIGNS: &str = "none";
const NO_CHECKSUM: &str = "00000000000000000000000000000000";

/// Sequences on their way from a pool into a file or from a file into a pool: the tables and the
/// pages that they name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved<'a> {
    snapshot: Snapshot,
    /// Bytes of the pages of each layer, by class.
    pages: Vec<[Cow<'a, [u8]>; 3]>,
    words: [usize; 3],
    heads: usize,
    metadata: BTreeMap<String, String>,
}

/// What a pool must have in common with a file, as the metadata say it.
fn shape_of(config: &PoolConfig, codebook: &Codebook) -> [(&'static str, String); 14] {
    let bits = |bits: Option<Bits>| bits.map_or("none".into(), |bits| bits.get().to_string());
    let codebook = match config.bits {
        Some((keys, values)) => {
            // A rate without a book has no pages, as the layout has found out.
            let book = |bits| {
                let scheme = config.profile.scheme(bits);
                codebook.book(scheme.family, bits).map_or(&[][..], |book| book.values())
            };
            let books = [book(keys), book(values)].concat();
            digits(xxh3_128(bytemuck::cast_slice(&books)))
        }
        None => "none".into(),
    };
    let signs = config.signs.filter(|_| config.bits.is_some());
    [
        ("layers", config.layers.to_string()),
        ("heads", config.heads.to_string()),
        ("head_dim_k", config.head_dim_k.to_string()),
        ("head_dim_v", config.head_dim_v.to_string()),
        ("profile", config.profile.name().into()),
        ("k_bits", bits(config.bits.map(|bits| bits.0))),
        ("v_bits", bits(config.bits.map(|bits| bits.1))),
        ("chunk", config.chunk.to_string()),
        ("sinks", config.sinks.to_string()),
        ("raw", config.raw.name().into()),
        ("codebook", codebook),
        (KEY_SCALE, if config.key_scale && config.bits.is_some() { "yes" } else { "no" }.into()),
        (ROPE, rope_text(config)),
        (SIGNS, signs.map_or(NO_SIGNS.into(), |seed| seed.to_string())),
    ]
}

/// The rotary embedding that packed pages take off.
fn rope_text(config: &PoolConfig) -> String {
    let Some(rope) = config.rope.as_ref().filter(|_| config.bits.is_some()) else {
        return NO_ROPE.into();
    };
    let digits = rope.frequencies().iter().map(|f| format!(" {:08x}", f.to_bits()));
    digits.fold(rope.pairing().name().to_owned(), |text, digits| text + &digits)
}

/// The metadata of a shape: that there are no key scales, no embedding or no signs is
/// not said.
fn metadata(shape: [(&'static str, String); 14]) -> BTreeMap<String, String> {
    let silent = |key: &str, value: &str| {
        [(KEY_SCALE, "no"), (ROPE, NO_ROPE), (SIGNS, NO_SIGNS)].contains(&(key, value))
    };
    let told = shape.into_iter().filter(|(key, value)| !silent(key, value));
    told.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn digits(hash: u128) -> String {
    format!("{hash:032x}")
}

pub(super) fn page_tensor(layer: usize, class: PageClass) -> String {
    let class = match class {
        PageClass::Sink => "sinks",
        PageClass::Packed => "packed",
        PageClass::Raw => "raw",
    };
    format!("layers.{layer}.{class}")
}

impl<'a> Saved<'a> {
    /// Sequences out of a pool of this configuration: their tables ([`Pool::snapshot`]) and for
    /// each layer and class ([`PageClass::index`]) the bytes of the pages, `[pages, words]`, in the
    /// order in which the tables number them.
    ///
    /// Rows that no sequence holds are set to zero.
    ///
    /// # Errors
    /// Those of [`PoolConfig::layout`]; [`Error::Length`] when the pages are not those that the
    /// tables name, and those of [`Pool::plan_load`] for tables that hold no water.
    pub fn new(
        config: &PoolConfig,
        codebook: &Codebook,
        snapshot: Snapshot,
        mut pages: Vec<[Cow<'a, [u8]>; 3]>,
    ) -> Result<Self> {
        let pool = Pool::of_any_budget(config.clone())?;
        pool.check_snapshot(&snapshot)?;
        let layout = pool.layout();
        if pages.len() != config.layers {
            let (got, expected) = (pages.len(), config.layers);
            return Err(Error::Length { argument: "layers of pages", got, expected });
        }
        for (layer, pages) in pages.iter_mut().enumerate() {
            let live = live_rows(&snapshot, layer, config.heads, layout);
            let scaled = scaled_sinks(&snapshot, layer, config.heads);
            for (class, live) in PageClass::ALL.into_iter().zip(live) {
                let bytes = &mut pages[class.index()];
                let (got, expected) = (bytes.len(), live.len() * layout.bytes(class) as usize);
                if got != expected {
                    return Err(Error::Length { argument: "bytes of pages", got, expected });
                }
                if expected > 0 {
                    let pages = bytes.to_mut().chunks_exact_mut(layout.bytes(class) as usize);
                    pages.zip(live).for_each(|(page, live)| clear_rest(page, live, class, layout));
                }
                if class == PageClass::Sink && layout.key_scale() {
                    let pages = bytes.to_mut().chunks_exact_mut(layout.bytes(class) as usize);
                    let rest = pages.zip(&scaled).filter(|(_, scaled)| !**scaled);
                    rest.for_each(|(page, _)| scale_bytes(page, layout).fill(0));
                }
            }
        }
        let metadata = metadata(shape_of(config, codebook));
        let words = PageClass::ALL.map(|class| layout.words(class));
        Ok(Self { snapshot, pages, words, heads: config.heads, metadata })
    }

    /// Sequences that a paged cache of either path exported.
    ///
    /// # Errors
    /// As [`Saved::new`].
    pub fn of(config: &PoolConfig, codebook: &Codebook, exported: Exported) -> Result<Self> {
        let pages = exported.pages.into_iter().map(|layer| layer.map(Cow::Owned)).collect();
        Self::new(config, codebook, exported.snapshot, pages)
    }

    /// The tables of the sequences in the file.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Bytes of the pages of a layer and class, `[pages, words]`, in the order in which the tables
    /// number them; none for a layer that there is not.
    pub fn pages(&self, layer: usize, class: PageClass) -> &[u8] {
        self.pages.get(layer).map_or(&[], |pages| &pages[class.index()])
    }

    /// Bytes of the pages of each layer, by class.
    pub(super) fn slices(&self) -> Vec<[&[u8]; 3]> {
        self.pages.iter().map(|pages| pages.each_ref().map(|bytes| &**bytes)).collect()
    }

    /// The whole file, a `wgkv-sequences` safetensors file with its checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (header, lists) = self.header();
        let pages: usize = self.pages.iter().flatten().map(|bytes| bytes.len()).sum();
        let words: usize = lists.iter().map(|list| list.words.len()).sum();
        let mut bytes = Vec::with_capacity(header.len() + pages + 4 * words);
        bytes.extend_from_slice(&header);
        self.parts(&lists, |part| bytes.extend_from_slice(part));
        bytes
    }

    /// Writes the file. Returns its size in bytes.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<u64> {
        let (header, lists) = self.header();
        out.write_all(&header)?;
        let (mut bytes, mut result) = (header.len() as u64, Ok(()));
        self.parts(&lists, |part| {
            if result.is_ok() {
                result = out.write_all(part);
                bytes += part.len() as u64;
            }
        });
        result.map(|()| bytes)
    }

    /// Everything behind the header, in order.
    fn parts(&self, lists: &[List], mut each: impl FnMut(&[u8])) {
        self.pages.iter().flatten().for_each(|bytes| each(bytes));
        lists.iter().for_each(|list| each(bytemuck::cast_slice(&list.words)));
    }

    /// The header with its checksum, and the lists.
    fn header(&self) -> (Vec<u8>, Vec<List>) {
        let lists = tables::lists(&self.snapshot, self.pages.len(), self.heads);
        let mut header = Header { metadata: self.metadata.clone(), ..Header::default() };
        for (key, value) in [("format", FORMAT), ("version", VERSION), (CHECKSUM, NO_CHECKSUM)] {
            header.metadata.insert(key.into(), value.into());
        }
        for (layer, pages) in self.pages.iter().enumerate() {
            for class in PageClass::ALL {
                let words = self.words[class.index()];
                let count = pages[class.index()].len() / (4 * words).max(1);
                header.push(page_tensor(layer, class), FileDtype::U32, &[count, words]);
            }
        }
        for list in &lists {
            header.push(list.name, FileDtype::U32, &list.shape);
        }
        let mut bytes = header.to_bytes();
        let mut hash = Xxh3::new();
        hash.update(&bytes);
        self.parts(&lists, |part| hash.update(part));
        let digits = digits(hash.digest128());
        if let Some(place) = checksum_place(&bytes, NO_CHECKSUM) {
            bytes[place..place + digits.len()].copy_from_slice(digits.as_bytes());
        }
        (bytes, lists)
    }

    /// Reads a file for a pool of this configuration. `recent` and the budgets may be others than
    /// those that it was written with.
    ///
    /// # Errors
    /// [`Error::File`] for anything but a whole file of the format that fits the pool, naming what
    /// is wrong; those of [`PoolConfig::layout`]; those of [`Pool::plan_load`], but for the budget,
    /// when the tables hold no water.
    pub fn read(file: &'a [u8], config: &PoolConfig, codebook: &Codebook) -> Result<Self> {
        let pool = Pool::of_any_budget(config.clone())?;
        let layout = pool.layout();
        let (header, start) = Header::read(file)?;
        check_format(&header)?;
        check_checksum(&header, file, start)?;
        let shape = shape_of(config, codebook);
        check_shape(&header, &shape)?;

        let data = &file[start..];
        let mut names = 0;
        let mut bytes = |name: &str, shape: &[Option<usize>]| -> Result<(Vec<usize>, &'a [u8])> {
            let entry = header.tensors.get(name);
            let entry = entry.ok_or_else(|| refuse(format!("{name} is missing")))?;
            let fits = entry.shape.len() == shape.len()
                && entry
                    .shape
                    .iter()
                    .zip(shape)
                    .all(|(n, want)| want.is_none_or(|want| want == *n));
            if entry.dtype != FileDtype::U32 || !fits {
                let (dtype, got) = (entry.dtype.name(), &entry.shape);
                let want = shape.iter().map(|n| n.map_or("any".into(), |n| n.to_string()));
                let want = want.collect::<Vec<String>>().join(", ");
                let reason =
                    format!("{name} is {dtype} of shape {got:?}, expected U32 of [{want}]");
                return Err(refuse(reason));
            }
            names += 1;
            Ok((entry.shape.clone(), &data[entry.begin as usize..entry.end as usize]))
        };
        let mut pages = Vec::with_capacity(config.layers.min(header.tensors.len()));
        let mut counts = Vec::new();
        for layer in 0..config.layers {
            let mut of_layer: [Cow<'a, [u8]>; 3] = Default::default();
            let mut count = [0; 3];
            for class in PageClass::ALL {
                let shape = [None, Some(layout.words(class))];
                let (shape, bytes) = bytes(&page_tensor(layer, class), &shape)?;
                // A class without pages has words of no length, of which any number fits.
                count[class.index()] =
                    if bytes.is_empty() { 0 } else { u32::try_from(shape[0]).unwrap_or(u32::MAX) };
                of_layer[class.index()] = Cow::Borrowed(bytes);
            }
            pages.push(of_layer);
            counts.push(count);
        }
        let mut lists = Vec::new();
        for (name, shape) in tables::shapes(config.layers, config.heads) {
            let (shape, bytes) = bytes(name, &shape)?;
            lists.push(List { name, shape, words: bytemuck::pod_collect_to_vec(bytes) });
        }
        if names != header.tensors.len() {
            let known = |name: &&String| {
                let layers = (0..config.layers).flat_map(|layer| {
                    PageClass::ALL.map(|class| page_tensor(layer, class) == **name)
                });
                let lists = tables::shapes(config.layers, config.heads);
                lists.iter().any(|(list, _)| list == name) || layers.into_iter().any(|same| same)
            };
            let name = header.tensors.keys().find(|name| !known(name));
            let name = name.map_or(String::new(), |name| shown(name));
            return Err(refuse(format!(
                "{name} does not belong to version {VERSION} of the format"
            )));
        }
        let snapshot = tables::snapshot(lists, counts, config.layers, config.heads)?;
        pool.check_snapshot(&snapshot)?;
        let metadata = metadata(shape);
        let words = PageClass::ALL.map(|class| layout.words(class));
        let saved = Self { snapshot, pages, words, heads: config.heads, metadata };
        for layer in 0..config.layers {
            let pages = PageClass::ALL.map(|class| saved.pages(layer, class));
            check_positions(&saved.snapshot, layer, config.heads, layout, pages)?;
            check_scales(&saved.snapshot, layer, config.heads, layout, pages[0])?;
        }
        Ok(saved)
    }
}

fn check_format(header: &Header) -> Result<()> {
    match header.metadata.get("format").map(String::as_str) {
        Some(FORMAT) => {}
        Some(other) => {
            let reason = format!("the file is of the format {}, expected {FORMAT}", shown(other));
            return Err(refuse(reason));
        }
        None => return Err(refuse(format!("the file names no format, expected {FORMAT}"))),
    }
    match header.metadata.get("version").map(String::as_str) {
        Some(VERSION) => Ok(()),
        Some(other) => Err(refuse(format!(
            "the file is of version {} of {FORMAT}, only {VERSION} is read",
            shown(other)
        ))),
        None => Err(refuse(format!("the file names no version of {FORMAT}"))),
    }
}

/// First byte of the digits of the checksum, which stand in one place only.
fn checksum_place(header: &[u8], digits: &str) -> Option<usize> {
    let text = format!("\"{CHECKSUM}\":\"{digits}\"");
    let mut places = header.windows(text.len()).enumerate();
    let mut places = places.by_ref().filter(|(_, window)| *window == text.as_bytes());
    let (place, _) = places.next()?;
    places.next().is_none().then_some(place + CHECKSUM.len() + 4)
}

fn check_checksum(header: &Header, file: &[u8], start: usize) -> Result<()> {
    let Some(told) = header.metadata.get(CHECKSUM) else {
        return Err(refuse(format!("the file has no {CHECKSUM}")));
    };
    let hexadecimal = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let whole = told.len() == NO_CHECKSUM.len() && told.bytes().all(hexadecimal);
    let place = checksum_place(&file[..start], told).filter(|_| whole);
    let Some(place) = place else {
        return Err(refuse(format!("the file has a {CHECKSUM} that is none: {}", shown(told))));
    };
    let mut hash = Xxh3::new();
    hash.update(&file[..place]);
    hash.update(NO_CHECKSUM.as_bytes());
    hash.update(&file[place + NO_CHECKSUM.len()..]);
    let got = digits(hash.digest128());
    if got == *told {
        Ok(())
    } else {
        Err(refuse(format!("the file is damaged: its {CHECKSUM} is {got}, the file says {told}")))
    }
}

fn check_shape(header: &Header, shape: &[(&'static str, String)]) -> Result<()> {
    for (key, expected) in shape {
        match header.metadata.get(*key) {
            Some(got) if got == expected => {}
            None if *key == ROPE && expected == NO_ROPE => {}
            Some(_) | None if *key == ROPE => {
                return Err(refuse("the file has keys of another rotary embedding than the pool"));
            }
            None if *key == KEY_SCALE => {
                if expected != "no" {
                    return Err(refuse(format!("the file has no {KEY_SCALE}, the pool has one")));
                }
            }
            None if *key == SIGNS => {
                if expected != NO_SIGNS {
                    let reason = format!("the file has no {SIGNS}, the pool has {expected}");
                    return Err(refuse(reason));
                }
            }
            Some(got) => {
                let got = shown(got);
                return Err(refuse(format!("the file has {key} {got}, the pool has {expected}")));
            }
            None => return Err(refuse(format!("the file does not say its {key}"))),
        }
    }
    let known = |key: &str| {
        ["format", "version", CHECKSUM].contains(&key) || shape.iter().any(|(name, _)| *name == key)
    };
    match header.metadata.keys().find(|key| !known(key)) {
        Some(key) => Err(refuse(format!(
            "the file has the metadata {}, unknown to version {VERSION} of {FORMAT}",
            shown(key)
        ))),
        None => Ok(()),
    }
}

/// Rows of each page of a layer that some sequence holds, by class.
fn live_rows(
    snapshot: &Snapshot,
    layer: usize,
    heads: usize,
    layout: &PoolLayout,
) -> [Vec<u32>; 3] {
    let mut live = snapshot.pages[layer].map(|count| vec![0; count as usize]);
    let [sinks, packed, raw] = &mut live;
    let chunk = layout.chunk() as u32;
    for saved in &snapshot.sequences {
        for head in &saved.heads[layer * heads..(layer + 1) * heads] {
            let sink_rows = head.rows.min(layout.sinks() as u32);
            let mut rest = head.rows - sink_rows;
            if let Some(page) = head.sink {
                let rows = &mut sinks[page as usize];
                *rows = sink_rows.max(*rows);
            }
            for page in &head.packed {
                packed[*page as usize] = chunk;
                rest -= chunk;
            }
            for page in &head.tail {
                let rows = &mut raw[*page as usize];
                *rows = rest.min(chunk).max(*rows);
                rest = rest.saturating_sub(chunk);
            }
        }
    }
    live
}

/// Whether the key scale of each sink page of a layer is in use: some sequence has packed pages
/// under it.
fn scaled_sinks(snapshot: &Snapshot, layer: usize, heads: usize) -> Vec<bool> {
    let mut scaled = vec![false; snapshot.pages[layer][PageClass::Sink.index()] as usize];
    for saved in &snapshot.sequences {
        for head in &saved.heads[layer * heads..(layer + 1) * heads] {
            if let Some(page) = head.sink.filter(|_| !head.packed.is_empty()) {
                scaled[page as usize] = true;
            }
        }
    }
    scaled
}

/// The key scale of a sink page.
fn scale_bytes<'a>(page: &'a mut [u8], layout: &PoolLayout) -> &'a mut [u8] {
    let first = layout.scale_offset();
    &mut page[4 * first..4 * (first + layout.scale_words())]
}

/// Refuses key scales in use whose factors are none.
fn check_scales(
    snapshot: &Snapshot,
    layer: usize,
    heads: usize,
    layout: &PoolLayout,
    sinks: &[u8],
) -> Result<()> {
    if !layout.key_scale() {
        return Ok(());
    }
    let first = 4 * layout.scale_offset();
    let scales = sinks.chunks_exact(layout.bytes(PageClass::Sink) as usize);
    for (page, (bytes, scaled)) in scales.zip(scaled_sinks(snapshot, layer, heads)).enumerate() {
        let factors = &bytes[first..first + 4 * layout.scale_words()];
        let factors: Vec<f16> = bytemuck::pod_collect_to_vec(factors);
        if scaled && let Err(fault) = check_factors(&factors) {
            let place = page_tensor(layer, PageClass::Sink);
            return Err(refuse(format!("{place}: page {page}: {fault}")));
        }
    }
    Ok(())
}

/// Sets everything of a page to zero but its first `live` rows, and its key scale.
fn clear_rest(page: &mut [u8], live: u32, class: PageClass, layout: &PoolLayout) {
    let live = live as usize;
    let side = |side: usize| match class {
        PageClass::Packed => layout.side_words(class, side),
        PageClass::Sink | PageClass::Raw => live * layout.row_words(side),
    };
    let (values, positions) = (layout.values_offset(class), layout.positions_offset(class));
    let end = match class {
        PageClass::Sink => layout.scale_offset(),
        PageClass::Packed | PageClass::Raw => layout.words(class),
    };
    let rest = [side(0)..values, values + side(1)..positions, positions + live..end];
    for words in rest {
        page[4 * words.start..4 * words.end].fill(0);
    }
}
