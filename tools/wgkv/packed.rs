//! The packed cache file.
//!
//! Row `b * heads + h` of a layer holds, in order of position: the sinks (raw), the packed chunks,
//! the rest (raw). Per layer `<i>`:
//!
//! | tensor | type | shape |
//! |---|---|---|
//! | `layers.<i>.offsets` | U32 | `[rows + 1]`, token rows of each row, packed or raw |
//! | `layers.<i>.pages_offsets` | U32 | `[rows + 1]`, pages of each row |
//! | `layers.<i>.positions` | U32 | `[token rows]`, only after eviction |
//! | `layers.<i>.k.pages`, `.v.pages` | U32 | `[pages, words of a page]` |
//! | `layers.<i>.k.rope` | F32 | `[pairs]`, inverse frequencies, where packed keys are without their rotary embedding |
//! | `layers.<i>.k.raw`, `.v.raw` | F16 or BF16 | `[raw token rows, D]` |
//! | `layers.<i>.k.scale` | F16 | `[rows, D]`, key scale of each row, only where keys are under one |
//!
//! and once `codebook_signed`, `codebook_magnitude` F32 `[256, 8]`, with the profile tuned also
//! `codebook_plain` F32 `[3712]`, the books of 1 to 4 bits one after the other. The metadata hold
//! `format`, `version`, `profile` (`compat`, `tuned` or `paper`), per layer, under `layers.<i>`, the
//! numbers of [`Note`] as JSON, and `checksum`, XXH3-128 of all of that and of the tensors; one that does
//! not fit is refused. Version 2 must have it, files of version 1 may be of before there was one.

use std::io::{Read, Seek};
use std::sync::Arc;

use half::f16;
use serde::{Deserialize, Serialize};
use wgkv::layout::{Bits, CODEBOOK_ROWS, PIECE, Profile, Scheme};
use wgkv::nsnquant::{Codebook, Codec, KeyScales, Pairing, Rope, check_factors};
use wgkv::shape::check_offsets;

use crate::file::{Data, Fail, FileDtype, Header, Output, Payload, Source, shown, told};
use crate::layers::{Names, layer_tensor};
use crate::ragged::{check_positions, to_json};

/// Name of the format in the metadata.
const FORMAT: &str = "wgkv-packed";
/// The version that this program writes.
const VERSION: &str = "2";
/// The version that is read too, with a checksum or without.
const UNSEALED: &str = "1";

/// The numbers that describe a packed layer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    pub batch: usize,
    pub heads: usize,
    /// Tokens that each sequence has seen, evicted ones included.
    pub tokens: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub k_bits: u32,
    pub v_bits: u32,
    pub chunk: usize,
    pub sinks: usize,
    pub recent: usize,
    /// Pairing of the rotary embedding that packed keys are without, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope: Option<String>,
    /// Whether packed keys are under a key scale.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub key_scale: bool,
    /// Seed of the signs that channels of keys and values got before they were transformed, if they
    /// got any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signs: Option<u32>,
}

/// Keys or values of a packed layer.
#[derive(Clone, Debug)]
pub struct Side {
    pub codec: Codec,
    /// `[pages, words]`.
    pub pages: Vec<u32>,
    /// `[raw token rows, D]`: of each row the sinks, then the tail.
    pub raw: Data,
    /// Key scales that the pages are packed under, if any.
    pub scales: Option<Scales>,
}

impl Side {
    /// The key scales of the pages.
    pub fn scales(&self) -> Option<KeyScales<'_>> {
        self.scales.as_ref().map(Scales::view)
    }
}

/// Key scales of a layer.
#[derive(Clone, Debug)]
pub struct Scales {
    /// `[rows, D]`.
    pub values: Vec<f16>,
    /// Row of each page.
    of_page: Vec<u32>,
}

impl Scales {
    /// The scales of rows that have so many pages.
    pub fn new(values: Vec<f16>, page_offsets: &[u32]) -> Self {
        let pages = page_offsets.windows(2).map(|row| (row[1] - row[0]) as usize);
        let of_page = pages.zip(0u32..).flat_map(|(n, row)| std::iter::repeat_n(row, n)).collect();
        Self { values, of_page }
    }

    /// As the library takes them.
    pub fn view(&self) -> KeyScales<'_> {
        KeyScales { values: &self.values, of_page: &self.of_page }
    }
}

/// A packed layer.
#[derive(Clone, Debug)]
pub struct Packed {
    pub note: Note,
    /// `[rows + 1]`, in token rows.
    pub offsets: Vec<u32>,
    /// `[rows + 1]`, in pages.
    pub page_offsets: Vec<u32>,
    /// Position of each token row; none when nothing was evicted.
    pub positions: Option<Vec<u32>>,
    pub k: Side,
    pub v: Side,
}

/// Where the rows of one head lie.
#[derive(Clone, Debug)]
pub struct Place {
    /// Token rows, counted over all heads, that are sinks.
    pub sinks: core::ops::Range<usize>,
    /// Token rows that are packed.
    pub packed: core::ops::Range<usize>,
    /// Token rows behind the packed ones.
    pub tail: core::ops::Range<usize>,
}

/// Where the rows of each head lie, from the counts.
pub fn places(offsets: &[u32], page_offsets: &[u32], sinks: usize, chunk: usize) -> Vec<Place> {
    offsets
        .windows(2)
        .zip(page_offsets.windows(2))
        .map(|(rows, pages)| {
            let (start, end) = (rows[0] as usize, rows[1] as usize);
            let first = start.saturating_add(sinks).min(end);
            let last = first + chunk * (pages[1] - pages[0]) as usize;
            Place { sinks: start..first, packed: first..last, tail: last..end }
        })
        .collect()
}

impl Packed {
    /// Where the rows of each head lie.
    pub fn places(&self) -> Vec<Place> {
        places(&self.offsets, &self.page_offsets, self.note.sinks, self.note.chunk)
    }

    /// Rows: sequences times heads.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// `[rows + 1]`, in raw token rows.
    pub fn raw_offsets(&self) -> Vec<u32> {
        let chunk = self.note.chunk as u32;
        self.offsets
            .iter()
            .zip(&self.page_offsets)
            .map(|(rows, pages)| rows - pages * chunk)
            .collect()
    }

    /// Position of every token row.
    pub fn all_positions(&self) -> Vec<u32> {
        match &self.positions {
            Some(positions) => positions.clone(),
            None => self.offsets.windows(2).flat_map(|row| 0..row[1] - row[0]).collect(),
        }
    }

    /// Adds the layer to a packed file.
    pub fn write(self, layer: u32, output: &mut Output) -> Result<(), Fail> {
        output.seal();
        output.note("format", FORMAT);
        output.note("version", VERSION);
        output.note("profile", profile_of(&self.k.codec).name());
        output.note(format!("layers.{layer}"), to_json(&self.note)?);
        let name = |tensor: &str| format!("layers.{layer}.{tensor}");
        let raw = self.raw_offsets().last().copied().unwrap_or(0) as usize;
        let pages = self.page_offsets.last().copied().unwrap_or(0) as usize;
        if let Some(rope) = self.k.codec.rope() {
            let list = rope.frequencies().to_vec();
            output.put(name("k.rope"), &[list.len()], Payload::F32(list));
        }
        for (tensor, side) in [("k", self.k), ("v", self.v)] {
            let layout = *side.codec.layout();
            let pages_shape = [pages, layout.words()];
            output.put(name(&format!("{tensor}.pages")), &pages_shape, Payload::U32(side.pages));
            if let Some(scales) = side.scales {
                let shape = [self.offsets.len() - 1, layout.head_dim()];
                let values = Payload::F16(scales.values);
                output.put(name(&format!("{tensor}.scale")), &shape, values);
            }
            let raw_shape = [raw, layout.head_dim()];
            output.put(name(&format!("{tensor}.raw")), &raw_shape, Payload::from(side.raw));
        }
        if let Some(positions) = self.positions {
            output.put(name("positions"), &[positions.len()], Payload::U32(positions));
        }
        output.put(name("offsets"), &[self.offsets.len()], Payload::U32(self.offsets));
        let count = self.page_offsets.len();
        output.put(name("pages_offsets"), &[count], Payload::U32(self.page_offsets));
        Ok(())
    }

    /// Reads a layer.
    pub fn read<R: Read + Seek>(
        source: &mut Source<R>,
        layer: u32,
        names: &Names,
        codebook: &Arc<Codebook>,
    ) -> Result<Self, Fail> {
        let key = format!("layers.{layer}");
        let name = |tensor: &str| names.get(tensor).cloned().unwrap_or(format!("{key}.{tensor}"));
        let note = note(source.header(), layer).map_err(|why| source.fail(&key, why))?;
        let profile = profile(source.header()).map_err(|why| source.fail(&key, why))?;
        let codec = |argument, dim, bits, scheme: fn(Profile, Bits) -> Scheme| {
            let codec = || -> Result<Codec, Fail> {
                let mut scheme = scheme(profile, Bits::new("bits", bits)?);
                scheme.signs = note.signs;
                Ok(Codec::with(argument, dim, scheme, note.chunk, codebook.clone())?)
            };
            codec().map_err(|e| e.at(&key).at(source.name()))
        };
        let k_codec = codec("k_dim", note.k_dim, note.k_bits, Profile::key_scheme)?;
        let v_codec = codec("v_dim", note.v_dim, note.v_bits, Profile::scheme)?;
        let rope = rope(source, note.rope.as_deref(), &key, names)?;
        let k_codec =
            k_codec.with_rope(rope).map_err(|e| Fail::from(e).at(&key).at(source.name()))?;

        let (offsets_name, pages_name) = (name("offsets"), name("pages_offsets"));
        let (_, offsets) = source.exactly::<u32>(&offsets_name, FileDtype::U32, 1)?;
        let (_, page_offsets) = source.exactly::<u32>(&pages_name, FileDtype::U32, 1)?;
        let Some(rows) = note.batch.checked_mul(note.heads).filter(|&rows| rows > 0) else {
            return Err(source.fail(&key, "the metadata say no rows"));
        };
        if rows != offsets.len().saturating_sub(1) {
            let message = format!("has {} entries, expected {} and 1", offsets.len(), rows);
            return Err(source.fail(&offsets_name, message));
        }
        if u32::try_from(note.tokens).is_err() {
            return Err(source.fail(&key, format!("the metadata say {} tokens", note.tokens)));
        }
        let total = offsets[rows] as usize;
        let pages = source.entry(&name("k.pages"), 2)?.shape[0];
        check_offsets("offsets", &offsets, rows, total)
            .map_err(|e| Fail::from(e).at(shown(&offsets_name)).at(source.name()))?;
        check_offsets("pages_offsets", &page_offsets, rows, pages)
            .map_err(|e| Fail::from(e).at(shown(&pages_name)).at(source.name()))?;
        for (row, (ends, pages)) in offsets.windows(2).zip(page_offsets.windows(2)).enumerate() {
            let length = u64::from(ends[1] - ends[0]);
            let room = length.saturating_sub(note.sinks as u64);
            let packed = u64::from(pages[1] - pages[0]) * note.chunk as u64;
            if packed > room || length > note.tokens as u64 {
                let message = format!(
                    "row {row} has {length} token rows, {packed} of them packed, of {} tokens",
                    note.tokens
                );
                return Err(source.fail(&pages_name, message));
            }
        }
        let positions = if names.contains_key("positions") {
            let list_name = name("positions");
            let (_, positions) = source.exactly::<u32>(&list_name, FileDtype::U32, 1)?;
            if positions.len() != total {
                let message = format!("has {} entries, expected {total}", positions.len());
                return Err(source.fail(&list_name, message));
            }
            check_positions(&offsets, &positions).map_err(|why| source.fail(&list_name, why))?;
            if let Some(&position) = positions.iter().find(|&&p| p as usize >= note.tokens) {
                let message = format!("has position {position} of {} tokens", note.tokens);
                return Err(source.fail(&list_name, message));
            }
            Some(positions)
        } else {
            if let Some(row) =
                offsets.windows(2).position(|r| (r[1] - r[0]) as usize != note.tokens)
            {
                let message = format!("row {row} is not whole, but there are no positions");
                return Err(source.fail(&offsets_name, message));
            }
            None
        };
        let raw = total - pages * note.chunk;
        let mut k = side(source, &name("k.pages"), &name("k.raw"), k_codec, pages, raw)?;
        if let Some(stray) = names.get("v.scale") {
            return Err(source.fail(stray, "is none that is read: keys alone have a scale"));
        }
        match (note.key_scale, names.get("k.scale")) {
            (true, None) => return Err(source.fail(&key, "k.scale is missing")),
            (false, Some(scale)) => {
                return Err(source.fail(scale, "the metadata do not speak of it"));
            }
            _ => {}
        }
        if note.key_scale {
            let scale = name("k.scale");
            let values = key_scale(source, &scale, [rows, note.k_dim])?;
            k.scales = Some(Scales::new(values, &page_offsets));
        }
        let v = side(source, &name("v.pages"), &name("v.raw"), v_codec, pages, raw)?;
        Ok(Self { note, offsets, page_offsets, positions, k, v })
    }
}

/// The rotary embedding that the packed keys of a layer are without.
fn rope<R: Read + Seek>(
    source: &mut Source<R>,
    pairing: Option<&str>,
    key: &str,
    names: &Names,
) -> Result<Option<Rope>, Fail> {
    let (pairing, name) = match (pairing, names.get("k.rope")) {
        (None, None) => return Ok(None),
        (Some(pairing), Some(name)) => (pairing, name),
        (Some(_), None) => return Err(source.fail(key, "k.rope is missing")),
        (None, Some(name)) => return Err(source.fail(name, "the metadata do not speak of it")),
    };
    let known = Pairing::ALL.into_iter().find(|known| known.name() == pairing);
    let Some(pairing) = known else {
        let message = format!("the metadata say a rope {}: halves and interleaved", shown(pairing));
        return Err(source.fail(key, message + " are read"));
    };
    let (_, list) = source.exactly::<f32>(name, FileDtype::F32, 1)?;
    let rope = Rope::new(pairing, &list);
    rope.map(Some).map_err(|e| Fail::from(e).at(shown(name)).at(source.name()))
}

fn side<R: Read + Seek>(
    source: &mut Source<R>,
    pages_name: &str,
    raw_name: &str,
    codec: Codec,
    pages: usize,
    raw: usize,
) -> Result<Side, Fail> {
    let layout = *codec.layout();
    for (name, shape) in
        [(pages_name, [pages, layout.words()]), (raw_name, [raw, layout.head_dim()])]
    {
        let got = source.entry(name, 2)?.shape;
        if got != shape {
            return Err(source.fail(name, format!("has shape {got:?}, expected {shape:?}")));
        }
    }
    let (_, pages) = source.exactly::<u32>(pages_name, FileDtype::U32, 2)?;
    let (_, raw) = source.floats(raw_name, 2)?;
    Ok(Side { codec, pages, raw, scales: None })
}

/// Reads key scales `[rows, D]`.
fn key_scale<R: Read + Seek>(
    source: &mut Source<R>,
    name: &str,
    shape: [usize; 2],
) -> Result<Vec<f16>, Fail> {
    let (got, values) = source.exactly::<f16>(name, FileDtype::F16, 2)?;
    if got != shape {
        return Err(source.fail(name, format!("has shape {got:?}, expected {shape:?}")));
    }
    check_factors(&values).map_err(|e| Fail::from(e).at(shown(name)).at(source.name()))?;
    Ok(values)
}

/// What the metadata say of a layer.
fn note(header: &Header, layer: u32) -> Result<Note, String> {
    version(header)?;
    profile(header)?;
    let text =
        header.metadata.get(&format!("layers.{layer}")).ok_or("the metadata do not describe it")?;
    serde_json::from_str(text).map_err(|e| format!("the metadata are not valid: {}", told(e)))
}

/// The version that the metadata name, if it is read.
fn version(header: &Header) -> Result<&str, String> {
    match header.metadata.get("version").map(String::as_str) {
        Some(version @ (VERSION | UNSEALED)) => Ok(version),
        Some(other) => Err(format!("version {} of the packed format is not read", shown(other))),
        None => Err("the metadata name no version".into()),
    }
}

/// The profile that the metadata name.
fn profile(header: &Header) -> Result<Profile, String> {
    let Some(name) = header.metadata.get("profile") else { return Ok(Profile::Compat) };
    let known = Profile::ALL.into_iter().find(|profile| profile.name() == name);
    known.ok_or_else(|| format!("profile {}: only compat, tuned and paper are read", shown(name)))
}

/// The profile whose scheme the codec of keys has, but for the signs.
fn profile_of(keys: &Codec) -> Profile {
    let mut scheme = keys.scheme();
    scheme.signs = None;
    let same = |profile: &Profile| profile.key_scheme(scheme.bits) == scheme;
    Profile::ALL.into_iter().find(same).unwrap_or_default()
}

/// Adds a codebook to a file, for pages of a profile.
pub fn write_codebook(codebook: &Codebook, profile: Profile, output: &mut Output) {
    if profile == Profile::Tuned {
        let values = codebook.plain_values();
        output.put("codebook_plain", &[values.len()], Payload::F32(values));
    }
    for (name, bits) in [("codebook_signed", Bits::One), ("codebook_magnitude", Bits::Two)] {
        let rows = codebook.rows(bits).to_vec();
        output.put(name, &[CODEBOOK_ROWS, PIECE], Payload::F32(rows));
    }
}

/// Checks a packed file as a whole and reads its codebook, as all that read one begin.
pub fn open_packed<R: Read + Seek>(source: &mut Source<R>) -> Result<Arc<Codebook>, Fail> {
    let version = version(source.header()).map_err(|why| Fail::input(why).at(source.name()))?;
    let sealed = version != UNSEALED;
    source.check_sum(sealed)?;
    let own = profile(source.header()).map_err(|why| Fail::input(why).at(source.name()))?;
    if own == Profile::Tuned && !source.header().tensors.contains_key("codebook_plain") {
        let why = "codebook_plain is missing, the book of pages of profile tuned";
        return Err(Fail::input(why).at(source.name()));
    }
    read_codebook(source)
}

/// Reads the codebook of a file.
pub fn read_codebook<R: Read + Seek>(source: &mut Source<R>) -> Result<Arc<Codebook>, Fail> {
    let mut book = |name: &str| {
        let (shape, rows) = source.exactly::<f32>(name, FileDtype::F32, 2)?;
        if shape != [CODEBOOK_ROWS, PIECE] {
            let message = format!("has shape {shape:?}, expected [{CODEBOOK_ROWS}, {PIECE}]");
            return Err(source.fail(name, message));
        }
        Ok(rows)
    };
    let (signed, magnitude) = (book("codebook_signed")?, book("codebook_magnitude")?);
    let mut codebook = Codebook::new(&signed, &magnitude);
    if source.header().tensors.contains_key("codebook_plain") {
        let (_, values) = source.exactly::<f32>("codebook_plain", FileDtype::F32, 1)?;
        codebook = codebook.and_then(|codebook| codebook.with_plain(&values));
    }
    Ok(Arc::new(codebook.map_err(|e| Fail::from(e).at(source.name()))?))
}

/// Bits per element of a packed file over keys and values, raw rows and positions counted, from the
/// header alone.
pub fn summary(header: &Header) -> Option<f64> {
    let (mut bytes, mut elements) = (0u64, 0u64);
    for (name, entry) in &header.tensors {
        let Some((layer, tensor)) = layer_tensor(name) else { continue };
        bytes = bytes.checked_add(entry.end - entry.begin)?;
        if let Some((side, part)) = tensor.split_once('.')
            && matches!(side, "k" | "v")
            && matches!(part, "pages" | "raw")
        {
            let note = note(header, layer).ok()?;
            let dim = if side == "k" { note.k_dim } else { note.v_dim };
            let tokens = if part == "pages" { note.chunk } else { 1 };
            let count = (*entry.shape.first()? as u64).checked_mul(tokens as u64)?;
            elements = elements.checked_add(count.checked_mul(dim as u64)?)?;
        }
    }
    (elements > 0).then(|| 8.0 * bytes as f64 / elements as f64)
}
