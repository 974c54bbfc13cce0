//! The loop of an engine: a cache on the engine's own device, and the same on the CPU path, which
//! says what is right.

use std::io::Write;

use wgkv::attention::gpu::DeviceQueries;
use wgkv::attention::{PagedAttend, Queries};
use wgkv::cache::pool::{Operation, Part, PoolConfig, SequenceId};
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::{Context, Readback, Recorder, Slice};
use wgkv::half::f16;
use wgkv::layout::Preset;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements};
use wgkv::wgpu;

use super::model::{Model, Side, Text};

/// Any fault on the way.
pub type Answer<T> = Result<T, Box<dyn std::error::Error>>;

/// Largest difference between the paths that rounding explains, relative to the outputs (rms).
const TOLERANCE: f32 = 1e-2;

/// Records, submits and does not wait. The encoder is the engine's: it may hold other work.
fn submit<T>(
    context: &Context,
    record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>,
) -> wgkv::Result<T> {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let value = record(&mut recorder)?;
    recorder.finish()?;
    context.queue().submit([encoder.finish()]);
    Ok(value)
}

/// A sequence of the engine: what it says, and its name in the cache. Both caches name alike.
struct Sequence {
    id: SequenceId,
    text: Text,
}

/// The engine: its device, its caches, its sequences.
pub struct Engine<'a> {
    context: &'a Context,
    model: Model,
    cache: gpu::PagedCache,
    check: cpu::PagedCache,
    sequences: Vec<Sequence>,
    /// Largest difference of outputs seen so far.
    worst: f32,
}

impl<'a> Engine<'a> {
    /// An engine without sequences.
    pub fn new(context: &'a Context, model: Model) -> Answer<Self> {
        let config = PoolConfig {
            slab_bytes: 1 << 20,
            ..PoolConfig::new(
                &Preset::default(),
                model.layers,
                model.kv_heads,
                [model.head_dim; 2],
                64 << 20,
            )?
        };
        let cache = gpu::PagedCache::new(context, config.clone(), Codebook::builtin())?;
        let check = cpu::PagedCache::new(config, Codebook::builtin())?;
        Ok(Self { context, model, cache, check, sequences: Vec::new(), worst: 0.0 })
    }

    /// Waits for what a submission reads back.
    fn wait<T: bytemuck::Pod>(&self, readback: &mut Readback) -> Answer<Vec<T>> {
        self.context.device().poll(wgpu::PollType::wait_indefinitely())?;
        Ok(bytemuck::pod_collect_to_vec(&pollster::block_on(readback)?))
    }

    fn upload(&self, rows: &[f16]) -> wgkv::Result<wgpu::Buffer> {
        self.context.upload("rows", bytemuck::cast_slice(rows))
    }

    /// A new sequence without tokens.
    pub fn begin(&mut self) -> usize {
        let id = self.cache.begin();
        assert_eq!(self.check.begin(), id);
        self.sequences.push(Sequence { id, text: Text::default() });
        self.sequences.len() - 1
    }

    /// A sequence that goes on from where another stands. Nothing is copied.
    pub fn fork(&mut self, from: usize) -> Answer<usize> {
        let id = self.cache.fork(self.sequences[from].id)?;
        assert_eq!(self.check.fork(self.sequences[from].id)?, id);
        self.sequences.push(Sequence { id, text: self.sequences[from].text.clone() });
        Ok(self.sequences.len() - 1)
    }

    /// Runs the model over the next tokens of some sequences, which it adds to their texts: keys and
    /// values go to the cache, queries meet it in the same encoder, layer after layer. A prompt has no
    /// queries here: what it says is not looked at.
    pub fn go(&mut self, members: &[(usize, u32)], story: u32, prompt: bool) -> Answer<()> {
        let parts: Vec<Part> = members
            .iter()
            .map(|(member, tokens)| Part { sequence: self.sequences[*member].id, tokens: *tokens })
            .collect();
        for (member, tokens) in members {
            self.sequences[*member].text.extend(story + *member as u32, *tokens);
        }
        let texts: Vec<(&Text, usize, usize)> = members
            .iter()
            .map(|(member, tokens)| {
                let text = &self.sequences[*member].text;
                (text, text.tokens.len() - *tokens as usize, *tokens as usize)
            })
            .collect();
        let operation = if prompt {
            Operation::Prefill { parts: &parts }
        } else {
            Operation::Append { parts: &parts, flush: true }
        };
        let (step, check) = (self.cache.step(&operation)?, self.check.step(&operation)?);
        let ids: Vec<SequenceId> = parts.iter().map(|part| part.sequence).collect();
        let mut batch = self.cache.batch(&ids)?;
        let same = self.check.batch(&ids)?;
        let settings = PagedAttend::default();
        let tokens = members.first().map_or(0, |member| member.1 as usize);
        let Model { layers, query_heads: heads, head_dim, .. } = self.model;

        // The whole step is one submission; in an engine the tensors come from its own kernels.
        let rows = |side, layer| self.model.rows(side, layer, &texts);
        let (mut buffers, mut inputs) = (Vec::new(), Vec::new());
        for layer in 0..layers {
            let sides = [Side::Key, Side::Value, Side::Query].map(|side| rows(side, layer));
            let [keys, values, queries] = &sides;
            buffers.push([self.upload(keys)?, self.upload(values)?, self.upload(queries)?]);
            inputs.push(sides);
        }
        let mut answers: Vec<Readback> = submit(self.context, |rec| {
            let mut answers = Vec::new();
            for (layer, buffers) in buffers.iter().enumerate() {
                let [keys, values, data] = buffers.each_ref().map(Slice::all);
                let dtype = Dtype::F16;
                let incoming = gpu::IncomingRows { keys, values, dtype };
                self.cache.record(rec, &step, layer, Some(incoming))?;
                if !prompt {
                    let batch_size = ids.len();
                    let queries =
                        DeviceQueries { data, dtype, batch: batch_size, heads, tokens, head_dim };
                    let attended =
                        self.cache.attend(rec, &mut batch, layer, &queries, &settings)?;
                    answers.push(rec.read_back(Slice::all(&attended.out))?);
                }
            }
            Ok(answers)
        })?;

        // The same on the CPU path, and then the comparison.
        for (layer, [keys, values, queries]) in inputs.iter().enumerate() {
            let (keys, values) = (Elements::F16(keys), Elements::F16(values));
            self.check.apply(&check, layer, Some(cpu::IncomingRows { keys, values }))?;
            if !prompt {
                let data = Elements::F16(queries);
                let queries = Queries { data, batch: ids.len(), heads, tokens, head_dim };
                let expected = self.check.attend(&same, layer, &queries, &settings)?.out;
                let out: Vec<f32> = self.wait(&mut answers[layer])?;
                self.compare(&out, &expected)?;
            }
        }
        self.compare_accounts()
    }

    fn compare(&mut self, ours: &[f32], expected: &[f32]) -> Answer<()> {
        let square = |x: f32| x * x;
        let error: f32 = ours.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
        let size: f32 = expected.iter().map(|x| square(*x)).sum();
        let difference = (error / size.max(f32::MIN_POSITIVE)).sqrt();
        self.worst = self.worst.max(difference);
        if ours.len() == expected.len() && difference <= TOLERANCE {
            Ok(())
        } else {
            Err(format!("outputs differ from the CPU path's by {difference}").into())
        }
    }

    fn compare_accounts(&self) -> Answer<()> {
        let (ours, theirs) = (self.cache.pool().figures(), self.check.pool().figures());
        if ours == theirs && self.cache.device_bytes() == ours.allocated_bytes {
            Ok(())
        } else {
            Err(format!("the device holds {ours:?}, the CPU path {theirs:?}").into())
        }
    }

    /// Ends a prompt: decides in every layer which tokens stay, and packs them. Only the head budgets
    /// are waited for, all layers at once.
    pub fn evict(&mut self, member: usize, per_head: u32) -> Answer<()> {
        let id = self.sequences[member].id;
        let heads = self.model.kv_heads;
        let config = EvictConfig::new(Budget::Adaptive { per_head, heads });
        let layers = 0..self.model.layers;
        let mut evictions = submit(self.context, |rec| {
            let evict = |layer| self.cache.evict(rec, id, layer, &config);
            layers.map(evict).collect::<wgkv::Result<Vec<gpu::Eviction>>>()
        })?;
        self.context.device().poll(wgpu::PollType::wait_indefinitely())?;
        for (layer, eviction) in evictions.iter_mut().enumerate() {
            let counts = pollster::block_on(eviction.counts.get())?;
            let positions: Vec<u32> = self.wait(&mut eviction.positions)?;
            let expected = self.check.evict(id, layer, &config)?;
            if counts != expected.counts() || positions != expected.kept.positions {
                return Err(format!("other tokens stay in layer {layer}").into());
            }
            self.check.finish(&expected)?;
            submit(self.context, |rec| self.cache.finish(rec, eviction, &counts))?;
            // Known positions allow trims that reach into the prompt.
            self.cache.told(id, layer, &positions)?;
            self.check.told(id, layer, &positions)?;
        }
        self.compare_accounts()
    }

    /// Takes the last tokens of a sequence back, such as those of a draft that were rejected.
    pub fn trim(&mut self, member: usize, tokens: u32) -> Answer<()> {
        let sequence = &mut self.sequences[member];
        let parts = [Part { sequence: sequence.id, tokens }];
        sequence.text.tokens.truncate(sequence.text.tokens.len() - tokens as usize);
        let operation = Operation::Trim { parts: &parts };
        let step = self.cache.step(&operation)?;
        submit(self.context, |rec| self.cache.record_all(rec, &step))?;
        let step = self.check.step(&operation)?;
        self.check.apply_all(&step)?;
        self.compare_accounts()
    }

    /// Puts all sequences into a file, lets all memory go, and goes on from the file, which the CPU
    /// path reads too. Returns the size of the file.
    pub fn pause(&mut self) -> Answer<u64> {
        let ids: Vec<SequenceId> = self.sequences.iter().map(|sequence| sequence.id).collect();
        let saving = submit(self.context, |rec| self.cache.save(rec, &ids))?;
        self.context.device().poll(wgpu::PollType::wait_indefinitely())?;
        let mut file = tempfile::NamedTempFile::new()?;
        let bytes = pollster::block_on(saving)?.write(&mut file)?;
        for id in ids {
            self.cache.free(id)?;
            self.check.free(id)?;
        }
        self.shrink()?;
        if self.device_bytes() > 0 {
            return Err("slabs are left behind".into());
        }
        let saved = std::fs::read(file.path())?;
        let ids = self.check.load(&saved)?;
        if submit(self.context, |rec| self.cache.load(rec, &saved))? != ids {
            return Err("the paths name sequences differently".into());
        }
        for (sequence, id) in self.sequences.iter_mut().zip(ids) {
            sequence.id = id;
        }
        self.compare_accounts()?;
        Ok(bytes)
    }

    /// Ends a sequence.
    pub fn free(&mut self, member: usize) -> Answer<()> {
        let id = self.sequences.remove(member).id;
        self.cache.free(id)?;
        Ok(self.check.free(id)?)
    }

    /// Lets go of slabs without pages.
    pub fn shrink(&mut self) -> Answer<()> {
        self.cache.shrink();
        self.check.shrink();
        self.compare_accounts()
    }

    /// Bytes that the device holds for the cache.
    pub fn device_bytes(&self) -> u64 {
        self.cache.device_bytes()
    }

    /// Largest difference between outputs of the two paths so far, relative to the outputs.
    pub fn worst(&self) -> f32 {
        self.worst
    }

    /// Names of the columns of [`Engine::report`].
    pub fn header(out: &mut dyn Write) -> Answer<()> {
        Ok(writeln!(
            out,
            "{:<28} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6} {:>6}  {:>5}",
            "in bytes",
            "pages",
            "codes",
            "scales",
            "means",
            "sinks",
            "tail",
            "pos.",
            "shared",
            "ratio"
        )?)
    }

    /// One line of bytes by part.
    pub fn report(&self, out: &mut dyn Write, title: &str) -> Answer<()> {
        let pool = self.cache.pool();
        let figures = pool.figures();
        let mut full = 0;
        for sequence in &self.sequences {
            full += pool.sequence_figures(sequence.id)?.full_bytes;
        }
        let parts = &figures.parts;
        let ratio = full as f64 / parts.total().max(1) as f64;
        let shared: u64 = figures.shared.iter().sum();
        Ok(writeln!(
            out,
            "{title:<28} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6} {:>6}  {ratio:>5.2}",
            parts.total(),
            parts.codes,
            parts.scales,
            parts.means,
            parts.sinks,
            parts.tail,
            parts.positions,
            shared,
        )?)
    }
}
