//! From rows to pages and back.

use std::sync::Arc;

use half::{bf16, f16};
use wgkv::Error;
use wgkv::layout::{Bits, PageLayout, Preset};
use wgkv::nsnquant::{Codebook, Codec};

use crate::args::{Packing, Profile, Switch};
use crate::engine::Engine;
use crate::file::{Data, Fail, Source};
use crate::packed::{Note, Packed, Place, Scales, Side, places, read_codebook};
use crate::ragged::Ragged;
use crate::report::say;
use crate::rope::Choice;

/// How to pack, from the options.
#[derive(Clone, Debug)]
pub struct Spec {
    pub codebook: Arc<Codebook>,
    pub profile: wgkv::layout::Profile,
    pub rope: Choice,
    pub bits: [Bits; 2],
    pub key_scale: bool,
    pub signs: Option<u32>,
    pub chunk: usize,
    pub sinks: usize,
    pub recent: usize,
}

impl Spec {
    /// Checks the options that do not depend on a file.
    ///
    /// What people script against came before the profile tuned: whoever names a rate, a codebook or
    /// `dump` (plain codes) and no profile gets compat.
    pub fn new(packing: &Packing, sinks: u32, dump: bool) -> Result<Self, Fail> {
        use wgkv::layout::Profile as Known;
        let preset = match packing.target_bits {
            Some(target) => Preset::for_bits(target).map_err(|e| {
                Fail::input(e.to_string().replacen("target bits", "--target-bits", 1))
            })?,
            None => Preset::default(),
        };
        let rate = packing.bits.or(packing.k_bits).or(packing.v_bits);
        let early =
            packing.target_bits.is_none() && (rate.is_some() || packing.codebook.is_some() || dump);
        let (profile, usual) = match packing.profile {
            Some(Profile::Compat) => (Known::Compat, [2, 2]),
            None if early => (Known::Compat, [2, 2]),
            Some(Profile::Tuned) | None => {
                (preset.profile, [preset.k_bits, preset.v_bits].map(|bits| bits.get() as u32))
            }
            Some(Profile::Paper) => (Known::Paper, [2, 2]),
        };
        let rope = Choice::new(&packing.rope)?;
        if matches!((profile, &rope), (Known::Paper, Choice::Unsaid)) {
            return Err(Fail::input(
                "--profile paper packs keys without their rotary embedding: say which they have with \
                 --rope-theta or --rope-frequencies (and --rope-pairing), or --no-rope",
            ));
        }
        let codebook = match &packing.codebook {
            Some(path) => read_codebook(&mut Source::open(path)?)?,
            None => Codebook::builtin(),
        };
        let family = profile.scheme(Bits::One).family;
        let own = [("--k-bits", packing.k_bits), ("--v-bits", packing.v_bits)];
        let mut bits = own.into_iter().zip(usual).map(|((name, one), usual)| {
            let all = packing.bits.map(|bits| ("--bits", bits));
            let (name, bits) = one.map(|bits| (name, bits)).or(all).unwrap_or((name, usual));
            family.rate(name, bits).map_err(|e| match packing.profile {
                None if Bits::new(name, bits).is_ok() => Fail::input(format!(
                    "{e}, as {name} without --profile packs by compat; --profile tuned has 1 to 4"
                )),
                _ => Fail::from(e),
            })
        });
        let mut next = || bits.next().unwrap_or(Ok(Bits::Two));
        let bits = [next()?, next()?];
        let usual = preset.key_scale && profile == preset.profile;
        let key_scale = packing.key_scale.map_or(usual, |switch| switch == Switch::On);
        let spec = Self {
            codebook,
            profile,
            rope,
            bits,
            key_scale,
            signs: packing.signs,
            chunk: packing.chunk.map_or(preset.chunk, |chunk| chunk as usize),
            sinks: sinks as usize,
            recent: packing.recent.map_or(preset.recent, |recent| recent as usize),
        };
        // Any head dimension tells whether the chunk is one that can be packed.
        PageLayout::new("head dim", 64, Bits::Two, spec.chunk)?;
        Ok(spec)
    }

    /// Codecs of keys and values of these head dimensions.
    pub fn codecs(&self, k_dim: usize, v_dim: usize) -> Result<[Codec; 2], Fail> {
        let codec = |dim, scheme| -> Result<Codec, Fail> {
            Ok(Codec::with("head dim", dim, scheme, self.chunk, self.codebook.clone())?)
        };
        let [keys, values] = self.profile.schemes(self.bits[0], self.bits[1], self.signs);
        let keys = codec(k_dim, keys)?;
        let keys = keys.with_rope(self.rope.rope(k_dim)?).map_err(|e| {
            let fail = Fail::from(e);
            if matches!(self.rope, Choice::Own(_)) { fail.at("--rope-frequencies") } else { fail }
        })?;
        Ok([keys, codec(v_dim, values)?])
    }

    /// Pages of a row of `length` token rows.
    pub fn pages(&self, length: usize) -> usize {
        length.saturating_sub(self.sinks).saturating_sub(self.recent) / self.chunk
    }
}

/// Packs a layer.
pub fn pack(engine: &Engine, spec: &Spec, layer: &Ragged) -> Result<Packed, Fail> {
    let [k_codec, v_codec] = spec.codecs(layer.k_dim, layer.v_dim)?;
    let mut page_offsets = vec![0u32];
    for row in layer.offsets.windows(2) {
        let before = page_offsets[page_offsets.len() - 1];
        page_offsets.push(before + spec.pages((row[1] - row[0]) as usize) as u32);
    }
    let places = places(&layer.offsets, &page_offsets, spec.sinks, spec.chunk);
    let starts: Vec<u32> = places
        .iter()
        .flat_map(|place| place.packed.clone().step_by(spec.chunk))
        .map(|start| start as u32)
        .collect();
    let positions = layer.all_positions();
    let scales = match spec.key_scale {
        true => Some(key_scales(&layer.k, layer.k_dim, &places, spec.chunk, &page_offsets)?),
        false => None,
    };
    let side = |codec: Codec, data: &Data, name: &str, scales: Option<Scales>| {
        let held = scales.as_ref().map(Scales::view);
        let pages = engine.encode(&codec, data.elements(), &positions, &starts, held.as_ref());
        let pages = pages.map_err(|e| e.at(name))?;
        let raw = raw_rows(data, &places, codec.layout().head_dim()).map_err(|e| e.at(name))?;
        Ok::<Side, Fail>(Side { codec, pages, raw, scales })
    };
    let note = Note {
        batch: layer.batch,
        heads: layer.heads,
        tokens: layer.tokens,
        k_dim: layer.k_dim,
        v_dim: layer.v_dim,
        k_bits: spec.bits[0].get() as u32,
        v_bits: spec.bits[1].get() as u32,
        chunk: spec.chunk,
        sinks: spec.sinks,
        recent: spec.recent,
        rope: k_codec.rope().map(|rope| rope.pairing().name().to_string()),
        key_scale: spec.key_scale,
        signs: spec.signs,
    };
    Ok(Packed {
        note,
        page_offsets,
        k: side(k_codec, &layer.k, &layer.names[0], scales)?,
        v: side(v_codec, &layer.v, &layer.names[1], None)?,
        offsets: layer.offsets.clone(),
        positions: layer.positions.clone(),
    })
}

/// The key scale of each row, fixed from the first chunks of it that are packed. The host does it
/// whatever packs the pages, so those of two devices can be compared.
fn key_scales(
    keys: &Data,
    dim: usize,
    places: &[Place],
    chunk: usize,
    page_offsets: &[u32],
) -> Result<Scales, Fail> {
    let mut values = Vec::with_capacity(places.len() * dim);
    for place in places {
        let rows = keys.elements().slice(place.packed.start * dim..place.packed.end * dim);
        values.extend(wgkv::nsnquant::key_scale(rows, dim, chunk)?);
    }
    Ok(Scales::new(values, page_offsets))
}

/// The rows that stay raw, as f16; as bf16 where a bf16 value is beyond f16.
fn raw_rows(data: &Data, places: &[Place], dim: usize) -> Result<Data, Fail> {
    let ranges = || places.iter().flat_map(|place| [place.sinks.clone(), place.tail.clone()]);
    let elements = |range: core::ops::Range<usize>| range.start * dim..range.end * dim;
    match data {
        Data::F16(x) => {
            Ok(Data::F16(ranges().flat_map(|r| x[elements(r)].iter().copied()).collect()))
        }
        Data::Bf16(x) => {
            let rows: Vec<bf16> = ranges().flat_map(|r| x[elements(r)].iter().copied()).collect();
            let fits = |v: &bf16| !v.is_finite() || f16::from_f32(v.to_f32()).is_finite();
            if rows.iter().all(fits) {
                Ok(Data::F16(rows.iter().map(|v| f16::from_f32(v.to_f32())).collect()))
            } else {
                Ok(Data::Bf16(rows))
            }
        }
        Data::F32(x) => {
            let mut rows = Vec::new();
            for range in ranges() {
                let first = range.start;
                for (at, &value) in x[elements(range)].iter().enumerate() {
                    let half = f16::from_f32(value);
                    if value.is_finite() && !half.is_finite() {
                        let row = first + at / dim;
                        return Err(Fail::from(Error::BeyondF16 {
                            argument: "raw rows".into(),
                            row,
                            value,
                        }));
                    }
                    rows.push(half);
                }
            }
            Ok(Data::F16(rows))
        }
    }
}

/// Restores keys or values of a layer as f32 `[token rows, D]`, raw rows as they are stored, given the
/// position of each token row.
pub fn restore(
    engine: &Engine,
    side: &Side,
    places: &[Place],
    positions: &[u32],
) -> Result<Vec<f32>, Fail> {
    let positions = packed_rows(places, positions);
    let decoded = engine.decode(&side.codec, &side.pages, &positions, side.scales().as_ref())?;
    let raw = side.raw.elements();
    let raw: Vec<f32> = (0..raw.len()).map(|i| raw.get(i)).collect();
    Ok(weave(&raw, &decoded, places, side.codec.layout().head_dim()))
}

/// Restores keys or values of a layer as f16: raw f16 rows keep their bits.
pub fn restore_f16(
    engine: &Engine,
    side: &Side,
    places: &[Place],
    positions: &[u32],
    name: &str,
) -> Result<Vec<f16>, Fail> {
    let positions = packed_rows(places, positions);
    let decoded = engine.decode(&side.codec, &side.pages, &positions, side.scales().as_ref())?;
    let decoded = saturate(&decoded, name);
    let raw = match &side.raw {
        Data::F16(rows) => rows.clone(),
        Data::Bf16(rows) => saturate(&rows.iter().map(|v| v.to_f32()).collect::<Vec<_>>(), name),
        Data::F32(rows) => saturate(rows, name),
    };
    Ok(weave(&raw, &decoded, places, side.codec.layout().head_dim()))
}

/// The positions of packed rows.
fn packed_rows(places: &[Place], positions: &[u32]) -> Vec<u32> {
    places.iter().flat_map(|place| &positions[place.packed.clone()]).copied().collect()
}

/// Puts raw and decoded rows back in order.
fn weave<T: Copy>(raw: &[T], decoded: &[T], places: &[Place], dim: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(raw.len() + decoded.len());
    let (mut raw_at, mut decoded_at) = (0, 0);
    let mut take = |from: &[T], at: &mut usize, rows: usize| {
        out.extend_from_slice(&from[*at..*at + rows * dim]);
        *at += rows * dim;
    };
    for place in places {
        take(raw, &mut raw_at, place.sinks.len());
        take(decoded, &mut decoded_at, place.packed.len());
        take(raw, &mut raw_at, place.tail.len());
    }
    out
}

/// Rounds to f16, cutting finite values off at the largest f16, and says how many were cut.
fn saturate(values: &[f32], name: &str) -> Vec<f16> {
    let mut cut = 0usize;
    let halves = values
        .iter()
        .map(|&value| {
            let half = f16::from_f32(value);
            if half.is_finite() || !value.is_finite() {
                return half;
            }
            cut += 1;
            if value > 0.0 { f16::MAX } else { f16::MIN }
        })
        .collect();
    if cut > 0 {
        say(&format!(
            "{name}: {cut} elements are beyond f16 and were cut off at 65504 (--dtype f32 keeps them)"
        ));
    }
    halves
}
