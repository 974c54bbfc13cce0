//! What happens to pages beside attention and decode steps, one layer of 8 KV heads of 128 channels at the
//! default rates: prompts written, scored, evicted and packed, pages copied, rows decoded again, fetched.
//! A measurement is one submit and the wait for it.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use wgkv::cache::gpu::{Fetch, IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{Recorder, Slice};
use wgkv::layout::Preset;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const DIM: usize = 128;
const TOKENS: u32 = 4096;
const KEPT: u32 = 1024;

/// Runs a recording and returns how long it took.
fn run<T>(record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>) -> (T, Duration) {
    let start = Instant::now();
    let value = support::run(record).expect("a recording");
    (value, start.elapsed())
}

struct Pages {
    cache: PagedCache,
    rows: wgpu::Buffer,
}

impl Pages {
    fn new() -> Self {
        let context = support::context();
        let config = PoolConfig::new(&Preset::default(), 1, HEADS, [DIM; 2], 1 << 28);
        let cache = PagedCache::new(context, config.expect("a pool"), Codebook::builtin());
        // Halves from 1 to 2 of either sign.
        let words = (0..HEADS * TOKENS as usize * DIM / 2)
            .map(|i| (i as u32).wrapping_mul(2_654_435_761) & 0x83ff_83ff | 0x3c00_3c00);
        let words: Vec<u32> = words.collect();
        let rows = context.upload("rows", bytemuck::cast_slice(&words)).expect("a buffer");
        Self { cache: cache.expect("a cache"), rows }
    }

    /// Plans an operation and carries it out.
    fn step(&mut self, operation: &Operation<'_>) -> Duration {
        let start = Instant::now();
        let step = self.cache.step(operation).expect("a step");
        let data = Slice::all(&self.rows);
        let rows = IncomingRows { keys: data, values: data, dtype: Dtype::F16 };
        let rows = (step.source_rows() > 0).then_some(rows);
        run(|rec| self.cache.record(rec, &step, 0, rows));
        start.elapsed()
    }

    fn prompt(&mut self) -> (SequenceId, Duration) {
        let sequence = self.cache.begin();
        let parts = [Part { sequence, tokens: TOKENS }];
        (sequence, self.step(&Operation::Prefill { parts: &parts }))
    }

    fn free(&mut self, sequence: SequenceId) {
        self.cache.free(sequence).expect("a sequence");
    }
}

fn pages(criterion: &mut Criterion) {
    let mut pages = Pages::new();
    let mut group = criterion.benchmark_group("pages");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    let config = EvictConfig::new(Budget::Uniform(KEPT));
    let mut bench = |name: &str, once: &mut dyn FnMut() -> Duration| {
        group.bench_function(name, |b| b.iter_custom(|times| (0..times).map(|_| once()).sum()));
    };
    bench("write a prompt", &mut || {
        let (sequence, spent) = pages.prompt();
        pages.free(sequence);
        spent
    });
    let (raw, _) = pages.prompt();
    bench("score and select", &mut || run(|rec| pages.cache.evict(rec, raw, 0, &config)).1);
    pages.free(raw);
    bench("keep and pack the rows of an eviction", &mut || {
        let (sequence, _) = pages.prompt();
        let (evicted, _) = run(|rec| pages.cache.evict(rec, sequence, 0, &config));
        let (_, spent) = run(|rec| pages.cache.finish(rec, &evicted, &[KEPT; HEADS]));
        pages.free(sequence);
        spent
    });
    bench("pack a prompt", &mut || {
        let (sequence, _) = pages.prompt();
        let keep = Keep::All;
        let spent = pages.step(&Operation::Finish { sequence, layers: 0..1, keep });
        pages.free(sequence);
        spent
    });
    let (packed, _) = pages.prompt();
    pages.step(&Operation::Finish { sequence: packed, layers: 0..1, keep: Keep::All });
    bench("copy the tails of a fork", &mut || {
        let sequence = pages.cache.fork(packed).expect("a fork");
        let parts = [Part { sequence, tokens: 1 }];
        let spent = pages.step(&Operation::Append { parts: &parts, flush: true });
        pages.free(sequence);
        spent
    });
    bench("restore a chunk for a trim", &mut || {
        let sequence = pages.cache.fork(packed).expect("a fork");
        let parts = [Part { sequence, tokens: 150 }];
        let spent = pages.step(&Operation::Trim { parts: &parts });
        pages.free(sequence);
        spent
    });
    let bytes = (HEADS * TOKENS as usize * DIM * 2) as u64;
    let [keys, values] =
        [(); 2].map(|()| support::context().create("rows", bytes).expect("a buffer"));
    bench("fetch", &mut || {
        let (keys, values) = (Slice::all(&keys), Slice::all(&values));
        let tokens = TOKENS as usize;
        let to = Fetch { keys, values, positions: None, tokens, dtype: Dtype::F16 };
        let mut batch = pages.cache.batch(&[packed]).expect("a batch");
        run(|rec| pages.cache.fetch(rec, &mut batch, 0, &to)).1
    });
    group.finish();
}

criterion_group!(benches, pages);
criterion_main!(benches);
