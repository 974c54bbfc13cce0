//! A paged cache of each path, doing the same with rows that are named by stream, layer, head and
//! position.

use half::f16;
use wgkv::Result;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::attention::{PagedAttend, Queries};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::{Recorder, Slice};
use wgkv::layout::Bits;
use wgkv::layout::pool::PageClass;
use wgkv::nestedkv::EvictConfig;
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements};

use crate::layer::close;
use crate::pages::Numbers;
use crate::support;

pub fn config() -> PoolConfig {
    PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: 2,
        heads: 2,
        head_dim_k: 64,
        head_dim_v: 32,
        bits: Some((Bits::Two, Bits::Two)),
        chunk: 16,
        sinks: 4,
        recent: 8,
        raw: Dtype::F16,
        byte_budget: 1 << 30,
        slab_bytes: 1 << 16,
    }
}

/// The same with the smallest budget, in slabs of one raw page.
pub fn smallest(config: PoolConfig) -> PoolConfig {
    let layout = config.layout().expect("a layout");
    let pages = PageClass::ALL.map(|class| layout.bytes(class));
    let slab_bytes = pages.into_iter().max().expect("three classes");
    let config = PoolConfig { slab_bytes, ..config };
    let byte_budget = config.smallest_bytes().expect("bytes");
    PoolConfig { byte_budget, ..config }
}

/// One row of a stream.
pub fn row(
    stream: u64,
    layer: usize,
    head: usize,
    position: u32,
    side: u64,
    dim: usize,
) -> Vec<f16> {
    let place = (layer as u64 * 64 + head as u64) << 33 | u64::from(position) << 1 | side;
    let mut numbers = Numbers::new(place.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ stream << 17);
    (0..dim).map(|_| f16::from_f32(numbers.normal())).collect()
}

pub struct Twin {
    pub cpu: cpu::PagedCache,
    pub gpu: gpu::PagedCache,
    /// Live sequences, by their place in both caches, with their streams.
    pub live: Vec<(SequenceId, u64)>,
}

impl Twin {
    pub fn new(config: PoolConfig) -> Self {
        let book = Codebook::builtin();
        let cpu = cpu::PagedCache::new(config.clone(), book.clone()).unwrap();
        let gpu = gpu::PagedCache::new(support::context(), config, book).unwrap();
        Self { cpu, gpu, live: Vec::new() }
    }

    pub fn begin(&mut self, stream: u64) -> usize {
        let id = self.cpu.begin();
        assert_eq!(self.gpu.begin(), id);
        self.live.push((id, stream));
        self.live.len() - 1
    }

    pub fn fork(&mut self, place: usize, stream: u64) -> usize {
        let id = self.cpu.fork(self.live[place].0).unwrap();
        assert_eq!(self.gpu.fork(self.live[place].0).unwrap(), id);
        self.live.push((id, stream));
        self.live.len() - 1
    }

    pub fn free(&mut self, place: usize) {
        let (id, _) = self.live.remove(place);
        self.cpu.free(id).unwrap();
        self.gpu.free(id).unwrap();
    }

    fn parts(&self, tokens: &[(usize, u32)]) -> Vec<Part> {
        let part = |(place, tokens): &(usize, u32)| Part {
            sequence: self.live[*place].0,
            tokens: *tokens,
        };
        tokens.iter().map(part).collect()
    }

    /// Keys and values that come in for one layer.
    fn incoming(&self, tokens: &[(usize, u32)], seen: &[u32], layer: usize) -> [Vec<f16>; 2] {
        let layout = self.cpu.pool().layout();
        let mut sides = [Vec::new(), Vec::new()];
        for ((place, tokens), seen) in tokens.iter().zip(seen) {
            let stream = self.live[*place].1;
            for head in 0..self.cpu.pool().config().heads {
                for position in *seen..seen + tokens {
                    for (side, rows) in sides.iter_mut().enumerate() {
                        let dim = layout.head_dims()[side];
                        rows.extend(row(stream, layer, head, position, side as u64, dim));
                    }
                }
            }
        }
        sides
    }

    pub fn add(&mut self, tokens: &[(usize, u32)], prompt: bool, flush: bool) -> Result<()> {
        let parts = self.parts(tokens);
        let operation = if prompt {
            Operation::Prefill { parts: &parts }
        } else {
            Operation::Append { parts: &parts, flush }
        };
        let seen: Vec<u32> =
            parts.iter().map(|part| self.cpu.pool().seen(part.sequence).unwrap()).collect();
        let step = self.cpu.step(&operation);
        let device = self.gpu.step(&operation);
        let (step, device) = match (step, device) {
            (Ok(step), Ok(device)) => (step, device),
            (Err(a), Err(b)) => {
                assert_eq!(a.to_string(), b.to_string());
                return Err(a);
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(step.source_rows(), device.source_rows());
        let layers = self.cpu.pool().config().layers;
        let rows: Vec<_> = (0..layers).map(|layer| self.incoming(tokens, &seen, layer)).collect();
        let upload = |rows: &Vec<f16>| {
            support::context().upload("rows", bytemuck::cast_slice(rows)).unwrap()
        };
        let buffers: Vec<_> = rows.iter().map(|sides| sides.each_ref().map(upload)).collect();
        support::run(|rec| {
            for (layer, [keys, values]) in buffers.iter().enumerate() {
                let [keys, values] = [Slice::all(keys), Slice::all(values)];
                let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
                self.gpu.record(rec, &device, layer, Some(rows))?;
            }
            Ok(())
        })?;
        for (layer, [keys, values]) in rows.iter().enumerate() {
            let (keys, values) = (Elements::F16(keys), Elements::F16(values));
            self.cpu.apply(&step, layer, Some(cpu::IncomingRows { keys, values }))?;
        }
        self.check_account();
        Ok(())
    }

    /// A step without incoming rows.
    pub fn run(&mut self, operation: &Operation<'_>) -> Result<()> {
        let step = self.cpu.step(operation);
        let device = self.gpu.step(operation);
        match (step, device) {
            (Ok(step), Ok(device)) => {
                support::run(|rec| self.gpu.record_all(rec, &device))?;
                self.cpu.apply_all(&step)?;
                self.check_account();
                Ok(())
            }
            (Err(a), Err(b)) => {
                assert_eq!(a.to_string(), b.to_string());
                Err(a)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn finish(&mut self, place: usize) {
        let layers = 0..self.cpu.pool().config().layers;
        let sequence = self.live[place].0;
        self.run(&Operation::Finish { sequence, layers, keep: Keep::All }).unwrap();
    }

    pub fn trim(&mut self, tokens: &[(usize, u32)]) -> Result<()> {
        let parts = self.parts(tokens);
        self.run(&Operation::Trim { parts: &parts })
    }

    pub fn flush(&mut self, places: &[usize]) {
        let sequences: Vec<_> = places.iter().map(|place| self.live[*place].0).collect();
        self.run(&Operation::Flush { sequences: &sequences }).unwrap();
    }

    /// Scores, evicts and packs a prompt, layer after layer.
    pub fn evict(&mut self, place: usize, config: &EvictConfig) {
        self.evict_and_tell(place, config, true);
    }

    /// As [`Twin::evict`], without telling which positions stayed.
    pub fn evict_untold(&mut self, place: usize, config: &EvictConfig) {
        self.evict_and_tell(place, config, false);
    }

    fn evict_and_tell(&mut self, place: usize, config: &EvictConfig, tell: bool) {
        let sequence = self.live[place].0;
        for layer in 0..self.cpu.pool().config().layers {
            let host = self.cpu.evict(sequence, layer, config).unwrap();
            let device = support::run(|rec| self.gpu.evict(rec, sequence, layer, config)).unwrap();
            let gpu::Eviction { positions, mut counts, .. } = device;
            let positions: Vec<u32> = bytemuck::pod_collect_to_vec(&support::wait(positions));
            let known = pollster::block_on(counts.get()).unwrap();
            assert_eq!(known, host.counts());
            assert_eq!(positions, host.kept.positions);
            let eviction = gpu::Eviction {
                positions: support::run(|rec| rec.read_back(Slice::all(&device.kept.positions)))
                    .unwrap(),
                counts,
                ..device
            };
            support::run(|rec| self.gpu.finish(rec, &eviction, &known)).unwrap();
            self.cpu.finish(&host).unwrap();
            if tell {
                self.cpu.told(sequence, layer, &positions).unwrap();
                self.gpu.told(sequence, layer, &positions).unwrap();
            }
            self.check_account();
        }
    }

    /// Both accounts are equal, and what they say is what is there.
    pub fn check_account(&self) {
        let figures = self.cpu.pool().figures();
        assert_eq!(self.gpu.pool().figures(), figures);
        assert_eq!(self.cpu.held_bytes(), figures.allocated_bytes);
        assert_eq!(self.gpu.device_bytes(), figures.allocated_bytes);
    }

    /// Fetches a batch on both paths.
    pub fn fetch(
        &self,
        places: &[usize],
        layer: usize,
        tokens: usize,
    ) -> [(Vec<f16>, Vec<f16>, Vec<u32>); 2] {
        let members: Vec<_> = places.iter().map(|place| self.live[*place].0).collect();
        let batch = self.cpu.batch(&members).unwrap();
        let host = self.cpu.fetch(&batch, layer, tokens, Dtype::F16).unwrap();
        let halves = |data: Elements<'_>| match data {
            Elements::F16(data) => data.to_vec(),
            _ => unreachable!(),
        };
        let dims = self.cpu.pool().layout().head_dims();
        let rows = host.positions.len();
        let context = support::context();
        let keys = context.create("keys", (rows * dims[0] * 2) as u64).unwrap();
        let values = context.create("values", (rows * dims[1] * 2) as u64).unwrap();
        let positions = context.create("positions", (rows * 4) as u64).unwrap();
        let mut batch = self.gpu.batch(&members).unwrap();
        let record = |rec: &mut Recorder<'_>| {
            let to = gpu::Fetch {
                keys: Slice::all(&keys),
                values: Slice::all(&values),
                positions: Some(Slice::all(&positions)),
                tokens,
                dtype: Dtype::F16,
            };
            self.gpu.fetch(rec, &mut batch, layer, &to)
        };
        support::run(record).unwrap();
        let mut device = (
            support::download_as::<f16>(&keys),
            support::download_as::<f16>(&values),
            support::download_as::<u32>(&positions),
        );
        device.0.truncate(rows * dims[0]);
        device.1.truncate(rows * dims[1]);
        device.2.truncate(rows);
        [(halves(host.keys()), halves(host.values()), host.positions), device]
    }

    /// Answers of both paths to the newest `tokens` queries of each member, in every layer one after
    /// the other in one recording; four query heads.
    pub fn attend(&self, places: &[usize], tokens: usize) -> [Vec<f32>; 2] {
        let members: Vec<_> = places.iter().map(|place| self.live[*place].0).collect();
        let dims = self.cpu.pool().layout().head_dims();
        let heads = 4;
        let query = |place: &usize| {
            let stream = self.live[*place].1;
            (0..heads * tokens).flat_map(move |q| row(stream, 50, 0, q as u32, 0, dims[0]))
        };
        let data: Vec<f16> = places.iter().flat_map(query).collect();
        let batch = members.len();
        let queries =
            Queries { data: Elements::F16(&data), batch, heads, tokens, head_dim: dims[0] };
        let buffer = support::context().upload("queries", bytemuck::cast_slice(&data)).unwrap();
        let device = DeviceQueries {
            data: Slice::all(&buffer),
            dtype: Dtype::F16,
            batch,
            heads,
            tokens,
            head_dim: dims[0],
        };
        let config = PagedAttend::default();
        let layers = self.cpu.pool().config().layers;
        let host_batch = self.cpu.batch(&members).unwrap();
        let mut device_batch = self.gpu.batch(&members).unwrap();
        let answers = support::run(|rec| {
            (0..layers)
                .map(|layer| self.gpu.attend(rec, &mut device_batch, layer, &device, &config))
                .collect::<Result<Vec<_>>>()
        })
        .unwrap();
        let mut both = [Vec::new(), Vec::new()];
        for (layer, answer) in answers.iter().enumerate() {
            let host = self.cpu.attend(&host_batch, layer, &queries, &config).unwrap();
            let out: Vec<f32> = support::download_as(&answer.out);
            for (a, b) in host.out.iter().zip(&out) {
                assert!((a - b).abs() <= 2e-2, "layer {layer}: {a} against {b}");
            }
            if layer + 1 == layers {
                both[0].extend(host.out);
                both[1].extend(&out[..batch * heads * tokens * dims[1]]);
            }
        }
        both
    }

    /// Checks one sequence against its stream: positions, raw rows bit for bit, packed rows nearly;
    /// and the paths with each other.
    pub fn check(&self, place: usize) {
        self.check_rows(place, &|_| true);
    }

    /// As [`Twin::check`], but rows at positions that are not `exact` may have come back from a chunk.
    pub fn check_rows(&self, place: usize, exact: &dyn Fn(u32) -> bool) {
        let (id, stream) = self.live[place];
        let pool = self.cpu.pool();
        let heads = pool.config().heads;
        let dims = pool.layout().head_dims();
        for layer in 0..pool.config().layers {
            let longest =
                (0..heads).map(|head| pool.rows(id, layer, head).unwrap()).max().unwrap() as usize;
            let tokens = longest + 3;
            let [host, device] = self.fetch(&[place], layer, tokens);
            assert_eq!(device.2, host.2);
            let bits = |x: &[f16]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            close(&bits(&device.0), &bits(&host.0), dims[0]);
            close(&bits(&device.1), &bits(&host.1), dims[1]);
            for head in 0..heads {
                let positions = pool.positions(id, layer, head).unwrap();
                let first = head * tokens;
                let len = positions.len();
                assert_eq!(host.2[first..first + len], positions);
                assert!(host.2[first + len..first + tokens].iter().all(|p| *p == u32::MAX));
                let sinks = len.min(pool.layout().sinks());
                let packed = pool.frontier(id, layer, head).unwrap() as usize;
                for (side, dim) in dims.into_iter().enumerate() {
                    for (path, rows) in [&host, &device].into_iter().enumerate() {
                        let data = if side == 0 { &rows.0 } else { &rows.1 };
                        let data = &data[first * dim..(first + tokens) * dim];
                        for (index, got) in data.chunks(dim).enumerate() {
                            if index >= len {
                                assert!(got.iter().all(|x| x.to_bits() == 0));
                                continue;
                            }
                            let position = positions[index];
                            let came = row(stream, layer, head, position, side as u64, dim);
                            let raw = index < sinks || index >= sinks + packed;
                            let place = (path, layer, head, position, side);
                            if raw && exact(position) {
                                assert_eq!(bits(got), bits(&came), "{place:?}");
                            } else {
                                let float = |x: &f16| x.to_f32();
                                let norm: f32 = came.iter().map(|x| float(x).powi(2)).sum();
                                let gap = got.iter().zip(&came);
                                let gap: f32 =
                                    gap.map(|(a, b)| (float(a) - float(b)).powi(2)).sum();
                                assert!(gap <= 0.5 * norm, "{place:?} {gap} of {norm}");
                            }
                        }
                    }
                }
            }
        }
    }

    pub fn end(mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        assert_eq!(self.cpu.pool().figures().parts.total(), 0);
        self.cpu.shrink();
        self.gpu.shrink();
        self.check_account();
        assert_eq!(self.gpu.device_bytes(), 0);
        for class in PageClass::ALL {
            assert!(self.gpu.slabs(class, 0).iter().all(Option::is_none));
        }
    }
}
