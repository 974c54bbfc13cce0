//! Sequences that come and go for a long time: `WGKV_SOAK_MINUTES`, or a few seconds. Memory on the
//! device returns to where it began each time that the last sequence has gone.

use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use wgkv::gpu::{Context, ContextDescriptor};
use wgkv::wgpu;

use crate::lives::{device_config, op};
use crate::model::Contents;
use crate::support;
use crate::twin::Device;
use crate::world::World;

/// Operations between two moments without sequences, and between two comparisons.
const OPERATIONS: usize = 150;
const COMPARED: usize = 15;
/// Pools that live through it all.
const POOLS: usize = 5;

fn duration() -> Duration {
    let minutes = std::env::var("WGKV_SOAK_MINUTES").ok().and_then(|set| set.parse::<f64>().ok());
    minutes.map_or(Duration::from_secs(6), |minutes| Duration::from_secs_f64(60.0 * minutes))
}

/// Allocations of the device, and their bytes, once nothing is in flight.
fn held(device: &wgpu::Device, queue: &wgpu::Queue) -> Option<(usize, u64)> {
    // What was filled while it was made lies in a staging buffer until the next submission.
    queue.submit([]);
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let report = device.generate_allocator_report()?;
    Some((report.allocations.len(), report.total_allocated_bytes))
}

/// Bytes of the process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

#[test]
fn memory_returns_to_where_it_began() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (configs, ops) = (device_config(), op());
    let mut worlds: Vec<_> = (0..POOLS)
        .map(|_| {
            let config = configs.new_tree(&mut runner).unwrap().current();
            let world = World::new(&config, Some(Device::new(&context, &config)));
            (config, world)
        })
        .collect();
    let start = held(&device, &queue);
    let (begun, mut rounds, mut operations, mut apart) = (Instant::now(), 0usize, 0usize, 0usize);
    let mut said = begun;
    while rounds < POOLS || begun.elapsed() < duration() {
        let (config, world) = &mut worlds[rounds % POOLS];
        world.contents = Contents::new(config);
        world.begin();
        for done in 1..=OPERATIONS {
            world.run(&ops.new_tree(&mut runner).unwrap().current());
            operations += 1;
            while world.live.len() > 10 {
                world.free(done % 10);
            }
            if world.apart {
                // From here on the paths lead different lives.
                apart += 1;
                break;
            }
            if done % COMPARED == 0 {
                world.check();
            }
        }
        world.clear_apart();
        world.empty();
        rounds += 1;
        assert_eq!(held(&device, &queue), start, "after {rounds} rounds");
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            println!(
                "{} s: {rounds} rounds, {operations} operations, {apart} apart, {:?}, {} MB",
                begun.elapsed().as_secs(),
                held(&device, &queue),
                resident() >> 20,
            );
        }
    }
    let pages = worlds
        .iter()
        .map(|(_, world)| world.pages)
        .fold((0, 0), |(equal, close), pages| (equal + pages.equal, close + pages.close));
    assert!(pages.1 <= 3 + pages.0 / 50, "{pages:?}");
    assert!(apart <= 2 + operations / 500, "{apart} of {operations}");
    println!(
        "{} s: {rounds} rounds, {operations} operations, {apart} apart, pages {pages:?}, {:?}, {} MB",
        begun.elapsed().as_secs(),
        held(&device, &queue),
        resident() >> 20,
    );
}
