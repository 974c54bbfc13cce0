//! What the operations of a paged cache cost, without a clock: dispatches, bytes bound and bytes of the
//! buffers made for each, of one layer, held to a table. Nothing runs: the device accepts work and does
//! none of it.

use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{Fetch, IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::Preset;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::memory::idle;

const HEADS: usize = 8;
const DIM: usize = 128;
/// Sequences, each with a prompt of so many tokens.
const BATCH: usize = 2;
const TOKENS: u32 = 4096;

/// A job, its dispatches, and the KiB that it binds and that it makes beside slabs.
type Cost = (&'static str, u64, u64, u64);

/// What was found when it was written down: dispatches and KiB made with slabs as they are by default, of
/// which there is one of each class; then dispatches and KiB bound with slabs of 4 MiB, which are nearly
/// full, so that a kernel that reads its pages twice shows.
const COSTS: [(&str, [u64; 2], [u64; 2]); 16] = [
    ("prefill", [2, 21], [10, 365033]),
    ("evict uniform", [15, 10190], [19, 92444]),
    ("evict adaptive", [21, 10215], [25, 93022]),
    ("finish an eviction", [6, 41], [18, 124007]),
    ("finish all", [5, 41], [16, 99214]),
    ("attend x1", [5, 110], [6, 50914]),
    ("attend x4", [5, 425], [6, 51749]),
    ("attend x8", [5, 844], [6, 52863]),
    ("attend twice as many", [5, 849], [6, 52891]),
    ("attend one", [5, 262], [6, 51282]),
    ("append", [1, 1], [6, 24625]),
    ("append and pack", [4, 5], [20, 130922]),
    ("append to a fork", [2, 1], [2, 8197]),
    ("trim", [0, 0], [0, 0]),
    ("trim into a chunk", [3, 3], [3, 16676]),
    ("fetch", [5, 11], [5, 62841]),
];

/// What KiB may be above the table.
const ALLOWED: f64 = 0.05;

/// A cache with what its jobs read, and their costs so far.
struct Life {
    context: Context,
    cache: PagedCache,
    data: wgpu::Buffer,
    costs: Vec<Cost>,
}

impl Life {
    fn new(slab_bytes: Option<u64>) -> Self {
        let (device, queue) = idle();
        let context = Context::new(&device, &queue, &ContextDescriptor::default());
        let context = context.expect("a context");
        let config = PoolConfig::new(&Preset::default(), 1, HEADS, [DIM; 2], 1 << 30);
        let mut config = config.expect("a pool");
        config.slab_bytes = slab_bytes.unwrap_or(config.slab_bytes);
        let cache = PagedCache::new(&context, config, Codebook::builtin());
        let bytes = (BATCH * HEADS * DIM * 2) as u64 * u64::from(TOKENS);
        let data = context.create("data", bytes).expect("a buffer");
        Self { context, cache: cache.expect("a cache"), data, costs: Vec::new() }
    }

    /// Records a job and writes its cost down.
    fn cost<T>(
        &mut self,
        name: &'static str,
        record: impl FnOnce(&mut PagedCache, &mut Recorder<'_>) -> wgkv::Result<T>,
    ) -> T {
        let made = |cache: &PagedCache| self.context.made_bytes() - cache.device_bytes();
        let before = made(&self.cache);
        let device = self.context.device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut rec = Recorder::new(&self.context, &mut encoder);
        let value = record(&mut self.cache, &mut rec).expect(name);
        let (dispatches, bound) = (rec.dispatches(), rec.bound_bytes());
        rec.finish().expect("a recording");
        let made = made(&self.cache) - before;
        self.costs.push((name, dispatches, bound.div_ceil(1024), made.div_ceil(1024)));
        value
    }

    fn step(&mut self, name: &'static str, operation: &Operation<'_>) {
        let data = self.data.clone();
        self.cost(name, |cache, rec| {
            let step = cache.step(operation)?;
            let size = u64::from(step.source_rows()) * DIM as u64 * 2;
            let rows = Slice { size, ..Slice::all(&data) };
            let rows = IncomingRows { keys: rows, values: rows, dtype: Dtype::F16 };
            cache.record(rec, &step, 0, (step.source_rows() > 0).then_some(rows))
        });
    }

    fn attend(&mut self, name: &'static str, group: usize, members: &[SequenceId]) {
        let data = self.data.clone();
        self.cost(name, |cache, rec| {
            let size = (members.len() * HEADS * group * DIM * 2) as u64;
            let queries = DeviceQueries {
                data: Slice { size, ..Slice::all(&data) },
                dtype: Dtype::F16,
                batch: members.len(),
                heads: HEADS * group,
                tokens: 1,
                head_dim: DIM,
            };
            let mut batch = cache.batch(members)?;
            cache.attend(rec, &mut batch, 0, &queries, &PagedAttend::default())
        });
    }
}

/// The costs of everything that can happen to sequences.
fn costs(slab_bytes: Option<u64>) -> Vec<Cost> {
    let mut life = Life::new(slab_bytes);
    let members = [(); BATCH].map(|()| life.cache.begin());
    let parts = |tokens| members.map(|sequence| Part { sequence, tokens });
    life.step("prefill", &Operation::Prefill { parts: &parts(TOKENS) });
    let each = TOKENS / 4;
    let uniform = EvictConfig::new(Budget::Uniform(each));
    let shared = EvictConfig::new(Budget::Adaptive { per_head: each, heads: HEADS });
    let [first, second] = members;
    let evicted = life.cost("evict uniform", |cache, rec| cache.evict(rec, first, 0, &uniform));
    life.cost("evict adaptive", |cache, rec| cache.evict(rec, first, 0, &shared));
    let counts = [each; HEADS];
    life.cost("finish an eviction", |cache, rec| cache.finish(rec, &evicted, &counts));
    let finish = Operation::Finish { sequence: second, layers: 0..1, keep: Keep::All };
    life.step("finish all", &finish);
    for (name, group) in [("attend x1", 1), ("attend x4", 4), ("attend x8", 8)] {
        life.attend(name, group, &members);
    }
    life.attend("attend twice as many", 4, &[first, second, second, first]);
    life.attend("attend one", 4, &[second]);
    life.step("append", &Operation::Append { parts: &parts(1), flush: true });
    life.step("append and pack", &Operation::Append { parts: &parts(64), flush: true });
    let fork = life.cache.fork(second).expect("a fork");
    let part = [Part { sequence: fork, tokens: 1 }];
    life.step("append to a fork", &Operation::Append { parts: &part, flush: true });
    life.step("trim", &Operation::Trim { parts: &part });
    let part = [Part { sequence: fork, tokens: 150 }];
    life.step("trim into a chunk", &Operation::Trim { parts: &part });
    let tokens = TOKENS as usize + 65;
    let bytes = (HEADS * tokens * DIM * 2) as u64;
    let [keys, values] = [(); 2].map(|()| life.context.create("rows", bytes).expect("a buffer"));
    life.cost("fetch", |cache, rec| {
        let mut batch = cache.batch(&[second])?;
        let (keys, values) = (Slice::all(&keys), Slice::all(&values));
        let to = Fetch { keys, values, positions: None, tokens, dtype: Dtype::F16 };
        cache.fetch(rec, &mut batch, 0, &to)
    });
    life.costs
}

#[test]
fn every_operation_costs_what_the_table_says() {
    let (usual, small) = (costs(None), costs(Some(4 << 20)));
    let found: Vec<_> =
        usual.iter().zip(&small).map(|(a, b)| (a.0, [a.1, a.3], [b.1, b.2])).collect();
    for line in &found {
        println!("    {line:?},");
    }
    assert_eq!(found.len(), COSTS.len());
    for ((name, usual, small), want) in found.into_iter().zip(COSTS) {
        assert_eq!((name, usual[0], small[0]), (want.0, want.1[0], want.2[0]));
        for (got, want) in [(usual[1], want.1[1]), (small[1], want.2[1])] {
            // Nor far below: a table that is out of date holds nothing.
            let most = (want as f64 * (1.0 + ALLOWED)) as u64 + 1;
            assert!((want / 2..=most).contains(&got), "{name}: {got} KiB of {want}");
        }
    }
}

/// What attention costs, and the bytes of the pages that it reads.
fn attended(cache: &mut PagedCache, context: &Context, sequence: SequenceId) -> [u64; 4] {
    cache.shrink();
    let asked = context.create("queries", (4 * HEADS * DIM * 2) as u64).expect("a buffer");
    let queries = DeviceQueries {
        data: Slice::all(&asked),
        dtype: Dtype::F16,
        batch: 1,
        heads: 4 * HEADS,
        tokens: 1,
        head_dim: DIM,
    };
    let made = context.made_bytes();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut rec = Recorder::new(context, &mut encoder);
    let mut batch = cache.batch(&[sequence]).expect("a batch");
    let config = PagedAttend::default();
    cache.attend(&mut rec, &mut batch, 0, &queries, &config).expect("attended");
    let (dispatches, bound) = (rec.dispatches(), rec.bound_bytes());
    rec.finish().expect("a recording");
    [dispatches, bound, context.made_bytes() - made, cache.device_bytes()]
}

#[test]
fn attention_costs_the_same_however_its_tokens_came() {
    const TOKENS: u32 = 700;
    let (device, queue) = idle();
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    let bytes = (HEADS * DIM * 2) as u64 * u64::from(TOKENS);
    let data = context.create("data", bytes).expect("a buffer");
    let mut costs = Vec::new();
    // Sizes of the prompt's parts, then of the parts after it; none has a prompt.
    let ways: [(&[u32], &[u32]); 5] = [
        (&[TOKENS], &[]),
        (&[1; 300], &[400]),
        (&[64, 500], &[1; 136]),
        (&[], &[1; TOKENS as usize]),
        (&[], &[1, 10, 200, 489]),
    ];
    for (prompt, after) in ways {
        let config = PoolConfig::new(&Preset::default(), 1, HEADS, [DIM; 2], 1 << 28);
        let cache = PagedCache::new(&context, config.expect("a pool"), Codebook::builtin());
        let mut cache = cache.expect("a cache");
        let sequence = cache.begin();
        let mut run = |operation: &Operation<'_>| {
            let step = cache.step(operation).expect("a step");
            let size = u64::from(step.source_rows()) * DIM as u64 * 2;
            let rows = Slice { size, ..Slice::all(&data) };
            let rows = IncomingRows { keys: rows, values: rows, dtype: Dtype::F16 };
            let rows = (size > 0).then_some(rows);
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut rec = Recorder::new(&context, &mut encoder);
            cache.record(&mut rec, &step, 0, rows).expect("a recording");
            rec.finish().expect("a recording");
        };
        for &tokens in prompt {
            run(&Operation::Prefill { parts: &[Part { sequence, tokens }] });
        }
        if !prompt.is_empty() {
            run(&Operation::Finish { sequence, layers: 0..1, keep: Keep::All });
        }
        for &tokens in after {
            run(&Operation::Append { parts: &[Part { sequence, tokens }], flush: true });
        }
        costs.push(attended(&mut cache, &context, sequence));
    }
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}
