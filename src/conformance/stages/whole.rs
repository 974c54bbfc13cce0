//! Whole jobs: a prompt evicted, and the life of sequences in a paged cache.

use half::f16;

use super::attention::Ruled;
use super::score::{Kind, Problem};
use crate::attention::PagedAttend;
use crate::attention::cpu::Attended;
use crate::attention::gpu::DeviceQueries;
use crate::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use crate::cache::{cpu, gpu};
use crate::conformance::draw::{Data, Random};
use crate::conformance::run::{Job, Run};
use crate::error::{Error, Result};
use crate::gpu::{DeviceTensor, Slice};
use crate::judge::attention::{Rows, Rules};
use crate::judge::widen;
use crate::layout::{Bits, Profile};
use crate::nestedkv::cpu::Kept;
use crate::nestedkv::gpu::{compress_prefill, first_beyond};
use crate::nestedkv::{Budget, EvictConfig, cpu as nestedkv};
use crate::nsnquant::{Codebook, Pairing, Rope};
use crate::shape::{Dtype, Elements, Tensor};

/// Whether rows may be copied to f16: all of them stay within it.
fn fits(problem: &Problem) -> bool {
    !matches!(problem.kind, Kind::Huge | Kind::Mixed) || problem.dtype == Dtype::F16
}

pub(super) fn compress<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut problem = Problem::draw(run);
        if !fits(&problem) {
            problem.kind = Kind::Offset;
        }
        let Problem { rows, tokens, dim, dtype, .. } = problem;
        let width = run.random.pick(&[16usize, 80, 128]);
        let per_head = run.random.below(tokens + 1) as u32;
        let budget = match run.random.odds(2) {
            true => Budget::Adaptive { per_head, heads: rows },
            false => Budget::Uniform(per_head),
        };
        let config = EvictConfig::new(budget);
        let keys = problem.keys();
        let values = Data::new(&run.random.normals(rows * tokens * width), dtype);
        let buffers = [run.upload(keys.view().bytes())?, run.upload(values.view().bytes())?];
        let [on_keys, on_values] = buffers.each_ref().map(Slice::all);
        let evicted = {
            let keys = DeviceTensor::new("keys", on_keys, dtype, rows, tokens, dim)?;
            let values = DeviceTensor::new("values", on_values, dtype, rows, tokens, width)?;
            run.record(|rec| compress_prefill(rec, &keys, &values, &config))?
        };
        let total = evicted.kept.total as usize;
        // Scores may differ in the last digits, so the CPU selects by those of the GPU.
        let scores: Vec<f32> = run.read(&evicted.scores.score, rows * tokens).await?;
        let want = nestedkv::keep(&scores, rows, tokens, &config)?;
        let offsets: Vec<u32> = run.read(&evicted.kept.offsets, rows + 1).await?;
        let positions: Vec<u32> = run.read(&evicted.kept.positions, total).await?;
        run.checks.equal("offsets", &offsets, &want.offsets);
        run.checks.equal("positions", &positions, &want.positions);
        for (what, got, data, dim) in
            [("key", &evicted.keys, &keys, dim), ("value", &evicted.values, &values, width)]
        {
            let tensor = Tensor::new("rows", data.view(), rows, tokens, dim)?;
            let copied: Vec<u16> = run.read(&got.rows, total * dim).await?;
            let beyond: Vec<u8> = run.read(&got.beyond, 4).await?;
            run.checks.equal("row beyond f16", &[first_beyond(&beyond)?], &[None]);
            let want = nestedkv::gather(&tensor, &want)?;
            let want: Vec<u16> = want.iter().map(|x| x.to_bits()).collect();
            run.checks.equal(what, &copied, &want);
        }
        Ok(())
    })
}

/// One row of a sequence's stream.
fn row(stream: u64, layer: usize, head: usize, position: u32, side: usize, dim: usize) -> Vec<f16> {
    let place = (layer as u64 * 64 + head as u64) << 33 | u64::from(position) << 1 | side as u64;
    let mut random = Random(place.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ stream << 17);
    (0..dim).map(|_| f16::from_f32(random.normal())).collect()
}

/// A paged cache of each path, doing the same.
struct Twin {
    cpu: cpu::PagedCache,
    gpu: gpu::PagedCache,
    /// Live sequences with their streams.
    live: Vec<(SequenceId, u64)>,
    /// Whether a trim may have brought rows back from a chunk.
    trimmed: bool,
}

impl Twin {
    fn new(run: &mut Run<'_>) -> Result<Self> {
        let (profile, rates) = run.random.pick(&[
            (Profile::Compat, &Bits::ALL[..2]),
            (Profile::Tuned, &Bits::ALL[..]),
            (Profile::Paper, &Bits::ALL[..2]),
        ]);
        let dims = [0; 2].map(|_| run.random.pick(&[32usize, 64, 80, 128]));
        let scaled = profile == Profile::Tuned && run.random.odds(2);
        let rope = match run.random.odds(4) {
            true => Some(Rope::with_theta(run.random.pick(&Pairing::ALL), 1e4, dims[0])?),
            false => None,
        };
        let config = PoolConfig {
            layers: run.random.between(1, 2),
            heads: run.random.between(1, 3),
            head_dim_k: dims[0],
            head_dim_v: dims[1],
            bits: Some((run.random.pick(rates), run.random.pick(rates))),
            profile,
            rope,
            signs: None,
            key_scale: scaled,
            chunk: run.random.pick(&[8usize, 16, 32]),
            sinks: run.random.between(0, 4),
            recent: run.random.between(0, 12),
            raw: Dtype::F16,
            byte_budget: 1 << 28,
            slab_bytes: 1 << 16,
        };
        let book = Codebook::builtin();
        let cpu = cpu::PagedCache::new(config.clone(), book.clone())?;
        let gpu = gpu::PagedCache::new(run.context, config, book)?;
        Ok(Self { cpu, gpu, live: Vec::new(), trimmed: false })
    }

    fn begin(&mut self, stream: u64) {
        let id = self.cpu.begin();
        let _ = self.gpu.begin();
        self.live.push((id, stream));
    }

    /// The next sequence shares what another holds; its own rows go on as that one's would.
    fn fork(&mut self, place: usize) -> Result<()> {
        let (id, stream) = self.live[place];
        let twin = self.cpu.fork(id)?;
        self.gpu.fork(id)?;
        self.live.push((twin, stream));
        Ok(())
    }

    /// Adds tokens to members, given by their places.
    fn add(
        &mut self,
        run: &Run<'_>,
        tokens: &[(usize, u32)],
        prompt: bool,
        flush: bool,
    ) -> Result<()> {
        let part = |(place, tokens): &(usize, u32)| Part {
            sequence: self.live[*place].0,
            tokens: *tokens,
        };
        let parts: Vec<Part> = tokens.iter().map(part).collect();
        let operation = match prompt {
            true => Operation::Prefill { parts: &parts },
            false => Operation::Append { parts: &parts, flush },
        };
        let seen: Vec<u32> =
            parts.iter().map(|part| self.cpu.pool().seen(part.sequence)).collect::<Result<_>>()?;
        let (step, device) = (self.cpu.step(&operation)?, self.gpu.step(&operation)?);
        let config = self.cpu.pool().config();
        let (layers, heads) = (config.layers, config.heads);
        let dims = self.cpu.pool().layout().head_dims();
        for layer in 0..layers {
            let mut sides = [Vec::new(), Vec::new()];
            for ((place, tokens), seen) in tokens.iter().zip(&seen) {
                let stream = self.live[*place].1;
                for head in 0..heads {
                    for position in *seen..seen + tokens {
                        for (side, rows) in sides.iter_mut().enumerate() {
                            rows.extend(row(stream, layer, head, position, side, dims[side]));
                        }
                    }
                }
            }
            let buffers = [run.upload(&sides[0])?, run.upload(&sides[1])?];
            let [keys, values] = buffers.each_ref().map(Slice::all);
            let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
            run.record(|rec| self.gpu.record(rec, &device, layer, Some(rows)))?;
            let (keys, values) = (Elements::F16(&sides[0]), Elements::F16(&sides[1]));
            self.cpu.apply(&step, layer, Some(cpu::IncomingRows { keys, values }))?;
        }
        Ok(())
    }

    /// A step without incoming rows.
    fn step(&mut self, run: &Run<'_>, operation: &Operation<'_>) -> Result<()> {
        let (step, device) = (self.cpu.step(operation)?, self.gpu.step(operation)?);
        run.record(|rec| self.gpu.record_all(rec, &device))?;
        self.cpu.apply_all(&step)
    }

    /// Ends the prompt of a sequence: keeps all of it or evicts.
    async fn finish(
        &mut self,
        run: &mut Run<'_>,
        place: usize,
        config: Option<&EvictConfig>,
    ) -> Result<()> {
        let (sequence, layers) = (self.live[place].0, 0..self.cpu.pool().config().layers);
        let Some(config) = config else {
            return self.step(run, &Operation::Finish { sequence, layers, keep: Keep::All });
        };
        for layer in layers {
            let host = self.cpu.evict(sequence, layer, config)?;
            let mut device = run.record(|rec| self.gpu.evict(rec, sequence, layer, config))?;
            let counts = device.counts.get().await?;
            let total = device.kept.total as usize;
            let offsets: Vec<u32> = run.read(&device.kept.offsets, counts.len() + 1).await?;
            let positions: Vec<u32> = run.read(&device.kept.positions, total).await?;
            // Scores that nearly tie may be in another order.
            let strangers = positions.iter().zip(&host.kept.positions).filter(|(a, b)| a != b);
            let (apart, total) = (strangers.count(), positions.len());
            let same = host.kept.positions.len() == total;
            run.checks.hold(same && (apart <= total / 2), || {
                format!("kept rows: {apart} of {total} are others than those of the CPU")
            });
            let kept = Kept { offsets, positions: positions.clone(), sinks_only: false };
            let told = cpu::Eviction { kept, ..host };
            run.checks.equal("counts", &counts, &told.counts());
            run.record(|rec| self.gpu.finish(rec, &device, &counts))?;
            self.cpu.finish(&told)?;
            self.cpu.told(sequence, layer, &positions)?;
            self.gpu.told(sequence, layer, &positions)?;
        }
        Ok(())
    }

    /// Compares the rows of all sequences, in every layer.
    async fn compare(&self, run: &mut Run<'_>) -> Result<()> {
        let pool = self.cpu.pool();
        let (heads, layers) = (pool.config().heads, pool.config().layers);
        let dims = pool.layout().head_dims();
        let members: Vec<SequenceId> = self.live.iter().map(|(id, _)| *id).collect();
        let batch = self.cpu.batch(&members)?;
        let mut device_batch = self.gpu.batch(&members)?;
        let (mut far, mut all) = (0, 0);
        for layer in 0..layers {
            let mut tokens = 1;
            for id in &members {
                for head in 0..heads {
                    tokens = tokens.max(pool.rows(*id, layer, head)? as usize);
                }
            }
            let host = self.cpu.fetch(&batch, layer, tokens, Dtype::F32)?;
            let lines = members.len() * heads;
            let create =
                |each: usize| run.context.create("fetched", (4 * lines * tokens * each) as u64);
            let out = [create(dims[0])?, create(dims[1])?, create(1)?];
            run.record(|rec| {
                let [keys, values, positions] = out.each_ref().map(Slice::all);
                let (positions, dtype) = (Some(positions), Dtype::F32);
                let to = gpu::Fetch { keys, values, positions, tokens, dtype };
                self.gpu.fetch(rec, &mut device_batch, layer, &to)
            })?;
            let positions: Vec<u32> = run.read(&out[2], lines * tokens).await?;
            run.checks.equal("position", &positions, &host.positions);
            let mut sides = Vec::new();
            for side in 0..2 {
                sides.push(run.read::<f32>(&out[side], lines * tokens * dims[side]).await?);
            }
            for line in 0..lines {
                let ((id, stream), head) = (self.live[line / heads], line % heads);
                let len = pool.rows(id, layer, head)? as usize;
                let sinks = len.min(pool.layout().sinks());
                let packed = pool.frontier(id, layer, head)? as usize;
                for index in 0..tokens {
                    for side in 0..2 {
                        let dim = dims[side];
                        let at = (line * tokens + index) * dim;
                        let got = &sides[side][at..at + dim];
                        let theirs = [host.keys(), host.values()][side].slice(at..at + dim);
                        let theirs = widen(theirs);
                        let raw = index < sinks || index >= sinks + packed;
                        if index >= len {
                            let zero = got.iter().all(|x| x.to_bits() == 0);
                            run.checks.hold(zero, || format!("row {index} of {len} is not 0"));
                        } else if raw && !self.trimmed {
                            let position = positions[line * tokens + index];
                            let came = row(stream, layer, head, position, side, dim);
                            let came: Vec<f32> = came.iter().map(|x| x.to_f32()).collect();
                            run.checks.equal("raw element", got, &came);
                        } else {
                            let square = |x: f64| x * x;
                            let gap =
                                got.iter().zip(&theirs).map(|(a, b)| square(f64::from(*a) - b));
                            let (gap, norm) = (gap.sum::<f64>().sqrt(), theirs.iter().copied());
                            let norm = norm.map(square).sum::<f64>().sqrt();
                            far += usize::from(gap > 4e-3 * norm + 1e-6);
                            run.checks.near("packed row", index, gap, 0.0, 0.8 * norm + 1e-6);
                        }
                        all += 1;
                    }
                }
            }
            let rows = [&sides[0], &sides[1]];
            self.attend(run, layer, rows, &positions, tokens, &mut device_batch).await?;
        }
        // Codes that nearly tie may be others.
        run.checks.hold(far <= 1 + all / 100, || format!("{far} of {all} rows differ"));
        Ok(())
    }

    /// The newest query of every member against the rows as the GPU decoded them.
    async fn attend(
        &self,
        run: &mut Run<'_>,
        layer: usize,
        fetched: [&Vec<f32>; 2],
        positions: &[u32],
        tokens: usize,
        batch: &mut gpu::Batch,
    ) -> Result<()> {
        let pool = self.cpu.pool();
        let (kv_heads, dims) = (pool.config().heads, pool.layout().head_dims());
        let (members, heads) = (self.live.len(), 2 * kv_heads);
        let query = |at: usize| row(at as u64, 50, 0, layer as u32, 0, dims[0]);
        let data: Vec<f16> = (0..members * heads).flat_map(query).collect();
        let buffer = run.upload(&data)?;
        let queries = DeviceQueries {
            data: Slice::all(&buffer),
            dtype: Dtype::F16,
            batch: members,
            heads,
            tokens: 1,
            head_dim: dims[0],
        };
        let config = PagedAttend::default();
        let answer = run.record(|rec| self.gpu.attend(rec, batch, layer, &queries, &config))?;
        let got = Attended {
            out: run.read(&answer.out, members * heads * dims[1]).await?,
            lse: run.read(&answer.lse, members * heads).await?,
        };
        let mut rows = Rows::default();
        for line in 0..members * kv_heads {
            let (id, _) = self.live[line / kv_heads];
            let len = pool.rows(id, layer, line % kv_heads)? as usize;
            let part = |side: usize| -> Vec<f64> {
                let first = line * tokens * dims[side];
                let own = &fetched[side][first..first + len * dims[side]];
                own.iter().map(|x| f64::from(*x)).collect()
            };
            rows.keys.push(part(0));
            rows.values.push(part(1));
            rows.positions.push(positions[line * tokens..line * tokens + len].to_vec());
        }
        let newest: Vec<u32> = self
            .live
            .iter()
            .map(|(id, _)| Ok(pool.seen(*id)?.saturating_sub(1)))
            .collect::<Result<_>>()?;
        let ruled = Ruled {
            queries: widen(Elements::F16(&data)),
            batch: members,
            heads,
            tokens: 1,
            dims,
            rows,
            rules: Rules { scale: None, cap: None, firsts: Some(&newest), window: None },
        };
        // The rows themselves were decoded to a few units of 2^-24.
        ruled.judge(run, "GPU", &got, 64.0);
        Ok(())
    }
}

pub(super) fn life<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut twin = Twin::new(run)?;
        let (chunk, sinks) = {
            let config = twin.cpu.pool().config();
            (config.chunk as u32, config.sinks as u32)
        };
        for stream in 0..2 {
            twin.begin(run.random.bits() | stream);
        }
        let prompts = [0, 1]
            .map(|place| (place, run.count(sinks as usize + 2, 6 * chunk as usize + 40) as u32));
        twin.add(run, &prompts, true, false)?;
        let heads = twin.cpu.pool().config().heads;
        for (place, tokens) in prompts {
            let per_head = run.random.between(sinks as usize, tokens as usize) as u32;
            let budget = match run.random.odds(2) {
                true => Budget::Adaptive { per_head, heads },
                false => Budget::Uniform(per_head),
            };
            let config = EvictConfig { sinks, ..EvictConfig::new(budget) };
            let evict = run.random.odds(2).then_some(&config);
            twin.finish(run, place, evict).await?;
        }
        twin.compare(run).await?;
        for _ in 0..run.count(1, 5) {
            let places = 0..twin.live.len();
            match run.random.below(6) {
                0..3 => {
                    let mut tokens = Vec::new();
                    for place in places {
                        tokens.push((place, run.count(1, 2 * chunk as usize) as u32));
                    }
                    let flush = run.random.odds(2);
                    twin.add(run, &tokens, false, flush)?;
                }
                3 if twin.live.len() < 4 => {
                    let place = run.random.below(twin.live.len());
                    twin.fork(place)?;
                }
                4 => {
                    let sequences: Vec<SequenceId> = twin.live.iter().map(|(id, _)| *id).collect();
                    twin.step(run, &Operation::Flush { sequences: &sequences })?;
                }
                _ => {
                    let sequence = twin.live[run.random.below(twin.live.len())].0;
                    let seen = twin.cpu.pool().seen(sequence)?;
                    let tokens = run.random.between(1, (seen as usize / 3).max(1)) as u32;
                    let parts = [Part { sequence, tokens }];
                    twin.trimmed = true;
                    twin.step(run, &Operation::Trim { parts: &parts })?;
                }
            }
        }
        twin.compare(run).await?;
        for (id, _) in core::mem::take(&mut twin.live) {
            twin.cpu.free(id)?;
            twin.gpu.free(id)?;
        }
        twin.cpu.shrink();
        twin.gpu.shrink();
        run.checks.equal("bytes left", &[twin.gpu.device_bytes()], &[0]);
        Ok::<(), Error>(())
    })
}
