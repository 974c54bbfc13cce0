//! What a paged cache must hold, from the rows that came in: raw rows as they are stored, packed
//! pages by packing the chunk afresh, rows that come back from a chunk by decoding it.

use std::collections::HashMap;
use std::rc::Rc;

use wgkv::cache::pool::PoolConfig;
use wgkv::half::{bf16, f16};
use wgkv::layout::Bits;
use wgkv::layout::pool::{PageClass, PoolLayout};
use wgkv::nsnquant::{self, Codebook, Codec};
use wgkv::shape::{Dtype, Elements};

use crate::pool_model::{Head, Row, Shape};

/// Owned elements of one type.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    pub fn new(dtype: Dtype, values: &[f32]) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values.to_vec()),
            Dtype::F16 => Self::F16(values.iter().map(|x| f16::from_f32(*x)).collect()),
            Dtype::Bf16 => Self::Bf16(values.iter().map(|x| bf16::from_f32(*x)).collect()),
        }
    }

    /// The elements whose bits these are.
    pub fn of_bits(dtype: Dtype, bits: &[u16]) -> Self {
        match dtype {
            Dtype::F16 => Self::F16(bits.iter().map(|x| f16::from_bits(*x)).collect()),
            _ => Self::Bf16(bits.iter().map(|x| bf16::from_bits(*x)).collect()),
        }
    }

    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }

    pub fn floats(&self) -> Vec<f32> {
        let elements = self.elements();
        (0..elements.len()).map(|i| elements.get(i)).collect()
    }
}

/// Random numbers that sum several uniform ones, the same on every machine.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub fn next(&mut self) -> f32 {
        (0..4).map(|_| self.bits() as f32 / (1u32 << 30) as f32 - 1.0).sum()
    }

    /// Rows of `dim` channels: a mean of the channel and noise around it.
    pub fn rows(&mut self, rows: usize, dim: usize) -> Vec<f32> {
        let mut means = Noise::new(dim as u64);
        let means: Vec<f32> = (0..dim).map(|_| means.next()).collect();
        let mut row = || {
            let scale = (0.5 * self.next()).exp2();
            means.iter().map(|mean| scale * (mean + self.next())).collect::<Vec<f32>>()
        };
        (0..rows).flat_map(|_| row()).collect()
    }
}

/// A packed chunk: words and decoded rows of keys and values.
#[derive(Debug)]
pub struct Chunk {
    pub words: [Vec<u32>; 2],
    pub decoded: [Vec<f32>; 2],
}

/// Every row that came in or came back, by number.
pub struct Contents {
    pub layout: PoolLayout,
    pub raw: Dtype,
    dims: [usize; 2],
    codecs: Option<[Codec; 2]>,
    rows: Vec<[Vec<u16>; 2]>,
    chunks: HashMap<Vec<u64>, Rc<Chunk>>,
}

pub fn codecs(config: &PoolConfig) -> Option<[Codec; 2]> {
    let codec = |dim, bits: Bits| {
        let scheme = config.profile.scheme(bits);
        Codec::with("rows", dim, scheme, config.chunk, Codebook::builtin()).unwrap()
    };
    config.bits.map(|(keys, values)| {
        let keys = codec(config.head_dim_k, keys).with_rope(config.rope.clone()).unwrap();
        [keys, codec(config.head_dim_v, values)]
    })
}

impl Contents {
    pub fn new(config: &PoolConfig) -> Self {
        Self {
            layout: config.layout().unwrap(),
            raw: config.raw,
            dims: [config.head_dim_k, config.head_dim_v],
            codecs: codecs(config),
            rows: Vec::new(),
            chunks: HashMap::new(),
        }
    }

    pub fn narrow(&self, value: f32) -> u16 {
        match self.raw {
            Dtype::F16 => f16::from_f32(value).to_bits(),
            _ => bf16::from_f32(value).to_bits(),
        }
    }

    pub fn widen(&self, bits: u16) -> f32 {
        match self.raw {
            Dtype::F16 => f16::from_bits(bits).to_f32(),
            _ => bf16::from_bits(bits).to_f32(),
        }
    }

    /// Stores a row and names it.
    pub fn add(&mut self, sides: [&[f32]; 2]) -> u64 {
        let row = sides.map(|side| side.iter().map(|x| self.narrow(*x)).collect());
        self.rows.push(row);
        self.rows.len() as u64 - 1
    }

    pub fn row(&self, id: u64, side: usize) -> &[u16] {
        &self.rows[id as usize][side]
    }

    /// Rows of one side, as they are stored.
    pub fn bits(&self, rows: &[Row], side: usize) -> Vec<u16> {
        rows.iter().flat_map(|row| self.row(row.id, side)).copied().collect()
    }

    /// Packs a chunk.
    pub fn chunk(&mut self, rows: &[Row]) -> Rc<Chunk> {
        let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
        if let Some(chunk) = self.chunks.get(&ids) {
            return chunk.clone();
        }
        let codecs = self.codecs.as_ref().unwrap();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let words = [0, 1].map(|side| {
            let data = Data::of_bits(self.raw, &self.bits(rows, side));
            let data = data.elements();
            nsnquant::cpu::encode_at(&codecs[side], data, &positions, &[0], None).unwrap()
        });
        let decoded = [0, 1].map(|side| {
            nsnquant::cpu::decode_at(&codecs[side], &words[side], &positions, None).unwrap()
        });
        let chunk = Rc::new(Chunk { words, decoded });
        self.chunks.insert(ids, chunk.clone());
        chunk
    }

    /// After a trim, gives the rows that came back from a chunk their new content.
    pub fn restore(&mut self, shape: &Shape, before: &[Row], head: &mut Head) {
        let first = shape.sinks + head.packed.len() * shape.chunk;
        let back = |(after, before): (&Row, &Row)| after.restored > before.restored;
        if !head.rows.iter().zip(before).any(back) {
            return;
        }
        let chunk = self.chunk(&before[first..first + shape.chunk]);
        for (at, row) in head.rows[first..].iter_mut().enumerate() {
            let of = |side: usize| {
                let d = self.dims[side];
                &chunk.decoded[side][at * d..(at + 1) * d]
            };
            row.id = self.add([of(0), of(1)]);
        }
    }

    /// Keys or values of a head as they read: raw rows as stored, packed ones decoded.
    pub fn read(&mut self, shape: &Shape, head: &Head, side: usize) -> Vec<f32> {
        let packed = shape.sinks..shape.sinks + head.packed.len() * shape.chunk;
        let mut out = Vec::new();
        for (at, row) in head.rows.iter().enumerate() {
            if row.packed {
                if (at - shape.sinks).is_multiple_of(shape.chunk) {
                    let chunk = self.chunk(&head.rows[at..at + shape.chunk]);
                    out.extend_from_slice(&chunk.decoded[side]);
                }
                assert!(packed.contains(&at));
            } else {
                let bits = self.row(row.id, side);
                out.extend(bits.iter().map(|x| self.widen(*x)));
            }
        }
        assert_eq!(out.len(), head.rows.len() * self.dims[side]);
        out
    }

    /// Words of a raw or sink page that begins with these rows, and which words they fill.
    fn raw_page(&self, class: PageClass, rows: &[Row]) -> Vec<Option<u32>> {
        let layout = &self.layout;
        let mut page = vec![None; layout.words(class)];
        for side in [0, 1] {
            let start = [0, layout.values_offset(class)][side];
            let bits = self.bits(rows, side);
            let words = bits.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
            page[start..].iter_mut().zip(words).for_each(|(to, word)| *to = Some(word));
        }
        self.positions(class, rows, &mut page);
        page
    }

    /// Keys or values of the first rows of a page.
    pub fn page_rows(&self, class: PageClass, side: usize, page: &[u32], rows: usize) -> Vec<f32> {
        let start = [0, self.layout.values_offset(class)][side];
        let words = &page[start..start + self.layout.side_words(class, side)];
        if class == PageClass::Packed {
            let positions = &page[self.layout.positions_offset(class)..][..rows];
            let codec = &self.codecs.as_ref().unwrap()[side];
            return nsnquant::cpu::decode_at(codec, words, positions, None).unwrap();
        }
        let bits: Vec<u16> = words.iter().flat_map(|w| [*w as u16, (*w >> 16) as u16]).collect();
        bits[..rows * self.dims[side]].iter().map(|bits| self.widen(*bits)).collect()
    }

    fn positions(&self, class: PageClass, rows: &[Row], page: &mut [Option<u32>]) {
        let positions = page[self.layout.positions_offset(class)..].iter_mut().zip(rows);
        positions.for_each(|(to, row)| *to = Some(row.position));
    }

    fn packed_page(&mut self, rows: &[Row]) -> Vec<Option<u32>> {
        let chunk = self.chunk(rows);
        let class = PageClass::Packed;
        let mut page = vec![None; self.layout.words(class)];
        for side in [0, 1] {
            let start = [0, self.layout.values_offset(class)][side];
            let words = page[start..].iter_mut().zip(&chunk.words[side]);
            words.for_each(|(to, word)| *to = Some(*word));
        }
        self.positions(class, rows, &mut page);
        page
    }

    /// The pages of a head in the order sinks, packed, tail; `None` for words that mean nothing.
    pub fn pages(&mut self, shape: &Shape, head: &Head) -> Vec<(PageClass, Vec<Option<u32>>)> {
        let sinks = head.rows.len().min(shape.sinks);
        let mut pages = Vec::new();
        if head.sink.is_some() {
            pages.push((PageClass::Sink, self.raw_page(PageClass::Sink, &head.rows[..sinks])));
        }
        let (packed, tail) = head.rows[sinks..].split_at(head.packed.len() * shape.chunk);
        for rows in packed.chunks(shape.chunk) {
            pages.push((PageClass::Packed, self.packed_page(rows)));
        }
        for rows in tail.chunks(shape.chunk) {
            pages.push((PageClass::Raw, self.raw_page(PageClass::Raw, rows)));
        }
        pages
    }
}
