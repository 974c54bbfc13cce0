//! wgkv as the cache of a model, on the CPU or on a GPU.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, ensure};
use rayon::prelude::*;
use wgkv::attention::{PagedAttend, Queries};
use wgkv::cache::cpu;
use wgkv::cache::pool::{Keep, Operation, Part, Pool, SequenceId};
use wgkv::half::f16;
use wgkv::nsnquant::{Codebook, key_scale};
use wgkv::shape::Elements;

use crate::choice::{Choice, Codec};
use crate::fake::Fake;
use crate::gpu::{Gpu, GpuCache};
use crate::model::{Model, Rows, Shape};
use crate::rule::Rule;

/// Tokens of a block where nothing asks for shorter ones.
const BLOCK: usize = 64;

/// Where a cache is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In host memory.
    Cpu,
    /// On a device.
    Gpu(Arc<Gpu>),
}

/// What new tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tokens of the prompt, which attend to raw rows.
    Prompt,
    /// Tokens after it.
    Answer,
}

enum Held {
    Cpu(Box<cpu::PagedCache>),
    Gpu(Box<GpuCache>),
}

/// Rows of a step that is under way.
pub enum Step {
    /// Of the cache in host memory.
    Cpu(cpu::Step),
    /// Of the cache on a device.
    Gpu(wgkv::cache::gpu::Step),
}

/// Rows of keys and values of one head that are still to be quantised, `[tokens, head_dim]`.
type Pending = [Vec<f32>; 2];

/// A cache with one sequence in it.
pub struct Cache {
    held: Held,
    sequence: SequenceId,
    choice: Choice,
    shape: Shape,
    /// By layer and head, where rows are quantised here.
    pending: Vec<Vec<Pending>>,
    /// Scales of keys by layer and head, once they are fixed.
    scales: Vec<Vec<Option<Vec<f16>>>>,
}

impl Cache {
    /// An empty cache.
    pub fn new(choice: &Choice, shape: &Shape, place: &Place) -> Result<Self> {
        let config = choice.pool(shape)?;
        let codebook = Codebook::builtin();
        let mut held = match place {
            Place::Cpu => Held::Cpu(Box::new(cpu::PagedCache::new(config, codebook)?)),
            Place::Gpu(gpu) => Held::Gpu(Box::new(GpuCache::new(gpu.clone(), config, codebook)?)),
        };
        let sequence = match &mut held {
            Held::Cpu(cache) => cache.begin(),
            Held::Gpu(cache) => cache.begin(),
        };
        let heads = match choice.codec {
            Codec::Fake(_) => shape.kv_heads,
            Codec::Raw | Codec::Packed { .. } => 0,
        };
        let pending = vec![vec![Pending::default(); heads]; shape.layers];
        let scales = vec![vec![None; heads]; shape.layers];
        Ok(Self { held, sequence, choice: choice.clone(), shape: *shape, pending, scales })
    }

    /// The account of the cache.
    pub fn pool(&self) -> &Pool {
        match &self.held {
            Held::Cpu(cache) => cache.pool(),
            Held::Gpu(cache) => cache.pool(),
        }
    }

    /// The sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Tokens that are in it.
    pub fn seen(&self) -> Result<usize> {
        Ok(self.pool().seen(self.sequence)? as usize)
    }

    /// Tokens that can be added before a chunk is full, so that all of them find the rows that they
    /// would find if they came one by one.
    pub fn room(&self) -> Result<usize> {
        let window = self.choice.window;
        let raw = window.sinks + window.recent + window.chunk;
        let mut room = usize::MAX;
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.kv_heads {
                let rows = self.pool().rows(self.sequence, layer, head)? as usize;
                let packed = match self.choice.codec {
                    Codec::Raw => return Ok(BLOCK),
                    Codec::Packed { .. } => {
                        let frontier = self.pool().frontier(self.sequence, layer, head)? as usize;
                        frontier.saturating_sub(window.sinks)
                    }
                    Codec::Fake(_) => {
                        let pending = self.pending[layer][head][0].len() / self.shape.head_dim;
                        rows.saturating_sub(window.sinks) - pending
                    }
                };
                room = room.min((raw + packed).saturating_sub(rows).max(1));
            }
        }
        Ok(room)
    }

    /// Begins to add tokens.
    pub fn open(&mut self, kind: Kind, tokens: usize) -> Result<Step> {
        let parts = [Part { sequence: self.sequence, tokens: u32::try_from(tokens)? }];
        self.step(&match kind {
            Kind::Prompt => Operation::Prefill { parts: &parts },
            Kind::Answer => Operation::Append { parts: &parts, flush: false },
        })
    }

    fn step(&mut self, operation: &Operation<'_>) -> Result<Step> {
        Ok(match &mut self.held {
            Held::Cpu(cache) => Step::Cpu(cache.step(operation)?),
            Held::Gpu(cache) => Step::Gpu(cache.step(operation)?),
        })
    }

    /// Adds the keys and values of one layer.
    pub fn write(&mut self, step: &Step, layer: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        self.put(step, layer, keys, values)?;
        if self.pending[layer].is_empty() {
            return Ok(());
        }
        let dim = self.shape.head_dim;
        let tokens = keys.len() / dim / self.shape.kv_heads;
        let before = self.seen()? - tokens;
        let skip = self.choice.window.sinks.saturating_sub(before).min(tokens);
        for (head, pending) in self.pending[layer].iter_mut().enumerate() {
            for (pending, rows) in pending.iter_mut().zip([keys, values]) {
                let rows = &rows[(head * tokens + skip) * dim..(head + 1) * tokens * dim];
                pending.extend(rows.iter().map(|x| f16::from_f32(*x).to_f32()));
            }
        }
        Ok(())
    }

    fn put(&mut self, step: &Step, layer: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        match (&mut self.held, step) {
            (Held::Cpu(cache), Step::Cpu(step)) => {
                let (keys, values) = (Elements::F32(keys), Elements::F32(values));
                Ok(cache.apply(step, layer, Some(cpu::IncomingRows { keys, values }))?)
            }
            (Held::Gpu(cache), Step::Gpu(step)) => cache.write(step, layer, keys, values),
            _ => anyhow::bail!("a step of another cache"),
        }
    }

    /// Attention of the newest tokens in one layer, `[heads, tokens, head_dim]`, each to the `window`
    /// tokens up to itself or to all.
    pub fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        window: Option<u32>,
    ) -> Result<Vec<f32>> {
        let Shape { heads, head_dim, .. } = self.shape;
        let config = PagedAttend { window, ..PagedAttend::default() };
        let tokens = queries.len() / heads / head_dim;
        match &mut self.held {
            Held::Cpu(cache) => {
                let queries =
                    Queries { data: Elements::F32(queries), batch: 1, heads, tokens, head_dim };
                let batch = cache.batch(&[self.sequence])?;
                Ok(cache.attend(&batch, layer, &queries, &config)?.out)
            }
            Held::Gpu(cache) => {
                cache.attend(self.sequence, layer, queries, heads, head_dim, &config)
            }
        }
    }

    /// Ends a block of the answer: packs the chunks that are full.
    pub fn close(&mut self) -> Result<()> {
        match self.choice.codec {
            Codec::Raw => Ok(()),
            Codec::Packed { .. } => {
                let sequences = [self.sequence];
                let step = self.step(&Operation::Flush { sequences: &sequences })?;
                self.carry_out(&step)
            }
            Codec::Fake(fake) => self.requantise(fake),
        }
    }

    /// Ends the prompt: packs the chunks that are full.
    pub fn finish(&mut self) -> Result<()> {
        let layers = 0..self.shape.layers;
        let sequence = self.sequence;
        let step = self.step(&Operation::Finish { sequence, layers, keep: Keep::All })?;
        self.carry_out(&step)?;
        self.close()
    }

    /// Ends the prompt in one layer, with these positions of each head.
    fn finish_with(&mut self, layer: usize, kept: &[Vec<u32>]) -> Result<()> {
        let name = &self.choice.name;
        ensure!(self.pending[layer].is_empty(), "{name} does not go with eviction");
        let counts: Vec<u32> = kept.iter().map(|head| head.len() as u32).collect();
        let (sequence, layers) = (self.sequence, layer..layer + 1);
        let step =
            self.step(&Operation::Finish { sequence, layers, keep: Keep::Counts(&counts) })?;
        let positions = kept.concat();
        match (&mut self.held, &step) {
            (Held::Cpu(cache), Step::Cpu(step)) => Ok(cache.keep(step, layer, &positions)?),
            (Held::Gpu(cache), Step::Gpu(step)) => cache.keep(step, layer, &positions),
            _ => anyhow::bail!("a step of another cache"),
        }
    }

    fn carry_out(&mut self, step: &Step) -> Result<()> {
        match (&mut self.held, step) {
            (Held::Cpu(cache), Step::Cpu(step)) => Ok(cache.apply_all(step)?),
            (Held::Gpu(cache), Step::Gpu(step)) => cache.carry_out(step),
            _ => anyhow::bail!("a step of another cache"),
        }
    }

    /// Takes the rows behind the frontier out and puts them back with full chunks quantised.
    fn requantise(&mut self, fake: Fake) -> Result<()> {
        let dim = self.shape.head_dim;
        let (chunk, recent) = (self.choice.window.chunk, self.choice.window.recent);
        let tokens = self.pending[0][0][0].len() / dim;
        let full = tokens.saturating_sub(recent) / chunk * chunk;
        if full == 0 {
            return Ok(());
        }
        let parts = [Part { sequence: self.sequence, tokens: u32::try_from(tokens)? }];
        let step = self.step(&Operation::Trim { parts: &parts })?;
        self.carry_out(&step)?;
        let step = self.open(Kind::Answer, tokens)?;
        for layer in 0..self.shape.layers {
            let heads = self.pending[layer].par_iter_mut().zip(&mut self.scales[layer]);
            heads.try_for_each(|(pending, scale)| -> Result<()> {
                if fake.scaled() && scale.is_none() {
                    let rows = Elements::F32(&pending[0][..full * dim]);
                    *scale = Some(key_scale(rows, dim, chunk)?);
                }
                for (side, rows) in pending.iter_mut().enumerate() {
                    for chunk in rows[..full * dim].chunks_exact_mut(chunk * dim) {
                        fake.restore(side, chunk, dim, scale.as_deref())?;
                    }
                }
                Ok(())
            })?;
            let mut sides = [Vec::new(), Vec::new()];
            for pending in &mut self.pending[layer] {
                for (side, rows) in pending.iter_mut().enumerate() {
                    sides[side].extend_from_slice(rows);
                    rows.drain(..full * dim);
                }
            }
            self.put(&step, layer, &sides[0], &sides[1])?;
        }
        Ok(())
    }
}

/// Keys and values of a prompt and what the model made of its last token.
pub struct Prompt {
    /// Tokens.
    pub tokens: usize,
    /// By layer: keys, values, and keys before their rotary embedding, `[kv_heads, tokens, head_dim]`.
    pub rows: Vec<[Vec<f32>; 3]>,
    /// The last hidden state.
    pub last: Vec<f32>,
}

impl Prompt {
    /// Reads a prompt without any cache but a raw one.
    pub fn read(model: &Model, tokens: &[u32], place: &Place, done: &dyn Fn(u64)) -> Result<Self> {
        ensure!(!tokens.is_empty(), "an empty prompt");
        let shape = model.shape();
        let window = crate::choice::Window { sinks: 0, recent: 0, chunk: BLOCK };
        let mut cache = Cache::new(&Choice::parse("f16", window)?, shape, place)?;
        let mut prompt = Self {
            tokens: tokens.len(),
            rows: vec![Default::default(); shape.layers],
            last: Vec::new(),
        };
        let mut blocks = Vec::new();
        for tokens in tokens.chunks(BLOCK) {
            let mut rows_of = Vec::new();
            let position = cache.seen()?;
            let step = cache.open(Kind::Prompt, tokens.len())?;
            let hidden = model.forward(tokens, position, |layer, rows| {
                cache.write(&step, layer, &rows.keys, &rows.values)?;
                rows_of.push([rows.keys.clone(), rows.values.clone(), rows.plain.clone()]);
                cache.attend(layer, &rows.queries, rows.window)
            })?;
            prompt.last = hidden[hidden.len() - shape.width..].to_vec();
            blocks.push((tokens.len(), rows_of));
            done(tokens.len() as u64);
        }
        for layer in 0..shape.layers {
            for side in 0..3 {
                for head in 0..shape.kv_heads {
                    for (tokens, rows) in &blocks {
                        let size = tokens * shape.head_dim;
                        let rows = &rows[layer][side][head * size..(head + 1) * size];
                        prompt.rows[layer][side].extend_from_slice(rows);
                    }
                }
            }
        }
        Ok(prompt)
    }

    /// Puts the prompt into an empty cache and finishes it, with what a rule keeps of it.
    ///
    /// # Errors
    /// Those of the library; for a rule where rows are quantised here, since these are put back by
    /// their positions.
    pub fn put(&self, cache: &mut Cache, rule: Option<&Rule>) -> Result<()> {
        let step = cache.open(Kind::Prompt, self.tokens)?;
        for (layer, [keys, values, _]) in self.rows.iter().enumerate() {
            cache.write(&step, layer, keys, values)?;
        }
        let Some(rule) = rule else { return cache.finish() };
        for (layer, [keys, _, plain]) in self.rows.iter().enumerate() {
            let kept = rule.kept(&cache.shape, keys, plain, layer as u64)?;
            cache.finish_with(layer, &kept)?;
        }
        Ok(())
    }
}

/// Runs tokens of the answer through a model and a cache block by block, which is bit for bit what
/// one token at a time gives: a block ends where a chunk is full. `each` gets the places of a block in
/// `tokens` and its hidden states.
pub fn stream(
    model: &Model,
    cache: &mut Cache,
    tokens: &[u32],
    mut each: impl FnMut(Range<usize>, &[f32]) -> Result<()>,
) -> Result<()> {
    stream_with(
        model,
        cache,
        tokens,
        usize::MAX,
        |cache, step, layer, rows| {
            cache.write(step, layer, &rows.keys, &rows.values)?;
            cache.attend(layer, &rows.queries, rows.window)
        },
        &mut each,
    )
}

/// What gets the places of a block and its hidden states.
pub type Each<'a> = dyn FnMut(Range<usize>, &[f32]) -> Result<()> + 'a;

/// [`stream`] in blocks of at most `block` tokens, with another way to attend.
pub fn stream_with(
    model: &Model,
    cache: &mut Cache,
    tokens: &[u32],
    block: usize,
    mut attend: impl FnMut(&mut Cache, &Step, usize, &Rows) -> Result<Vec<f32>>,
    each: &mut Each<'_>,
) -> Result<()> {
    let mut done = 0;
    while done < tokens.len() {
        let count = cache.room()?.min(tokens.len() - done).min(block).min(4 * BLOCK);
        let range = done..done + count;
        let position = cache.seen()?;
        let step = cache.open(Kind::Answer, count)?;
        let hidden = model.forward(&tokens[range.clone()], position, |layer, rows| {
            attend(cache, &step, layer, rows)
        })?;
        cache.close()?;
        done += count;
        each(range, &hidden)?;
    }
    Ok(())
}
