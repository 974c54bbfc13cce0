//! Random lives of several sequences in a paged cache against the plain model: every word of every
//! page, counts, positions, bytes, fetched rows and attention, on the host and on both paths.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use wgkv::cache::pool::PoolConfig;
use wgkv::layout::pool::PageClass;
use wgkv::layout::{Bits, Profile};
use wgkv::nsnquant::{Pairing, Rope};
use wgkv::shape::Dtype;

use crate::attend::Ask;
use crate::world::{Finish, World};

/// What a program does; sequences are chosen among those alive by remainder.
#[derive(Clone, Debug)]
pub enum Op {
    Begin,
    Prefill(Vec<(u8, u32)>, Dtype),
    /// The sequence, a layer or all, how, and whether positions are told at once.
    Finish(u8, Option<u8>, Finish, bool),
    Append(Vec<(u8, u32)>, bool, Dtype),
    Flush(Vec<u8>),
    Trim(Vec<(u8, u32)>),
    Fork(u8),
    Free(u8),
    Tell(u8),
    /// Members, the layer, tokens to spare, element type.
    Fetch(Vec<u8>, u8, u8, Dtype),
    /// Members, the layer, what is asked.
    Attend(Vec<u8>, u8, Ask),
    /// Saves some sequences and loads them beside themselves.
    Reload(Vec<u8>),
    Shrink,
}

impl World {
    pub fn run(&mut self, op: &Op) {
        let place = |world: &Self, s: u8| (s as usize).checked_rem(world.live.len());
        let layers = self.shape.layers;
        match op {
            Op::Begin => drop(self.begin()),
            Op::Prefill(chosen, dtype) => drop(self.add(chosen, true, false, *dtype)),
            Op::Append(chosen, flush, dtype) => drop(self.add(chosen, false, *flush, *dtype)),
            Op::Flush(chosen) => drop(self.flush(chosen)),
            Op::Trim(chosen) => drop(self.trim(chosen)),
            Op::Finish(sequence, layer, how, tell) => {
                let Some(place) = place(self, *sequence) else { return };
                let layer = layer.map(|layer| layer as usize % layers);
                let layers = layer.map_or(0..layers, |layer| layer..layer + 1);
                self.finish(place, layers, *how, *tell);
            }
            Op::Fork(sequence) => drop(place(self, *sequence).map(|place| self.fork(place))),
            Op::Free(sequence) => drop(place(self, *sequence).map(|place| self.free(place))),
            Op::Tell(sequence) => drop(place(self, *sequence).map(|place| self.tell(place))),
            Op::Fetch(chosen, layer, spare, dtype) => {
                self.fetch(chosen, *layer as usize % layers, *spare as usize, *dtype);
            }
            Op::Attend(chosen, layer, ask) => {
                self.attend(chosen, *layer as usize % layers, ask);
            }
            Op::Reload(chosen) => drop(self.reload(chosen)),
            Op::Shrink => self.shrink(),
        }
    }
}

fn parts(tokens: core::ops::Range<u32>) -> impl Strategy<Value = Vec<(u8, u32)>> {
    prop::collection::vec((0u8..6, tokens), 1..4)
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::F16, Dtype::F16, Dtype::Bf16, Dtype::F32])
}

fn finish() -> impl Strategy<Value = Finish> {
    prop_oneof![
        2 => Just(Finish::All),
        2 => (1u32..60).prop_map(Finish::Uniform),
        3 => (1u32..60).prop_map(Finish::Adaptive),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let cap = prop::option::of(0.5f32..30.0);
    let scale = prop::option::of(prop::sample::select(vec![0.05f32, 0.3, 1.0]));
    let window = prop::option::of(1u32..60);
    let first = prop::option::weighted(0.3, prop::collection::vec(0u32..90, 1..3));
    let shape = (1usize..4, 1usize..4, dtype());
    (any::<u64>(), shape, scale, cap, window, prop::bool::weighted(0.2), first).prop_map(
        |(seed, (group, tokens, dtype), scale, soft_cap, window, all, first)| Ask {
            seeds: vec![seed, seed ^ 1, seed ^ 2],
            group,
            tokens,
            dtype,
            scale,
            soft_cap,
            window: window.filter(|_| !all),
            all,
            first: first.filter(|_| !all),
        },
    )
}

pub fn op() -> impl Strategy<Value = Op> {
    let some = || prop::collection::vec(0u8..6, 0..4);
    prop_oneof![
        2 => Just(Op::Begin),
        4 => (parts(0..50), dtype()).prop_map(|(parts, dtype)| Op::Prefill(parts, dtype)),
        5 => (0u8..6, prop::option::weighted(0.3, 0u8..2), finish(), prop::bool::weighted(0.7))
            .prop_map(|(sequence, layer, how, tell)| Op::Finish(sequence, layer, how, tell)),
        8 => (parts(0..40), prop::bool::weighted(0.7), dtype())
            .prop_map(|(parts, flush, dtype)| Op::Append(parts, flush, dtype)),
        1 => some().prop_map(Op::Flush),
        5 => parts(0..40).prop_map(Op::Trim),
        3 => (0u8..6).prop_map(Op::Fork),
        2 => (0u8..6).prop_map(Op::Free),
        1 => (0u8..6).prop_map(Op::Tell),
        2 => (some(), 0u8..2, 0u8..70, dtype())
            .prop_map(|(members, layer, spare, dtype)| Op::Fetch(members, layer, spare, dtype)),
        3 => (some(), 0u8..2, ask())
            .prop_map(|(members, layer, ask)| Op::Attend(members, layer, ask)),
        1 => some().prop_map(Op::Reload),
        1 => Just(Op::Shrink),
    ]
}

/// Few shapes, since a device compiles pipelines for each: what else there is stays random.
pub fn device_config() -> impl Strategy<Value = PoolConfig> {
    let two = Some((Bits::Two, Bits::Two));
    let rope = |pairing, channels| Rope::with_theta(pairing, 1e4, channels).ok();
    let part = rope(Pairing::Interleaved, 16);
    let default = Some((Bits::Three, Bits::Two));
    let (compat, paper, tuned) = (Profile::Compat, Profile::Paper, Profile::Tuned);
    let shapes = vec![
        (2usize, 2usize, [16usize, 24], Some((Bits::Two, Bits::One)), 16usize, compat, None, None),
        (1, 3, [64, 32], two, 32, paper, rope(Pairing::Halves, 64), None),
        (2, 1, [8, 16], None, 17, compat, None, None),
        (1, 2, [32, 80], Some((Bits::One, Bits::Two)), 20, compat, part, Some(0)),
        (1, 2, [64, 40], default, 17, tuned, None, None),
        (2, 1, [32, 16], default, 16, tuned, None, Some(u32::MAX)),
    ];
    (config(), prop::sample::select(shapes)).prop_map(|(config, shape)| {
        let (layers, heads, [head_dim_k, head_dim_v], bits, chunk, profile, rope, signs) = shape;
        let raw = if profile == Profile::Paper { Dtype::Bf16 } else { Dtype::F16 };
        let shaped = PoolConfig {
            layers,
            heads,
            head_dim_k,
            head_dim_v,
            bits,
            chunk,
            raw,
            profile,
            rope,
            signs,
            ..config
        };
        let layout = PoolConfig { slab_bytes: 1 << 24, ..shaped.clone() }.layout().unwrap();
        let page = PageClass::ALL.map(|class| layout.bytes(class)).into_iter().max().unwrap();
        let slabs = config.byte_budget / config.slab_bytes;
        let slab_bytes = page * (1 + shaped.slab_bytes % 7);
        let sized = PoolConfig { slab_bytes, ..shaped };
        let byte_budget = (slab_bytes * slabs).max(sized.smallest_bytes().unwrap());
        PoolConfig { byte_budget, ..sized }
    })
}

/// Pools of small pages; slabs of one page to ten, budgets of a few slabs to more than a program can
/// fill.
fn config() -> impl Strategy<Value = PoolConfig> {
    let bits = prop_oneof![
        1 => Just(None),
        3 => Just(Some((Bits::Two, Bits::Two))),
        2 => Just(Some((Bits::One, Bits::Two))),
        1 => Just(Some((Bits::Two, Bits::One))),
    ];
    let rates = || prop::sample::select(Bits::ALL.to_vec());
    let tuned = prop::option::weighted(0.4, (rates(), rates()));
    let dims = || prop::sample::select(vec![8usize, 8, 16, 16, 24, 32, 64]);
    let chunk = prop::sample::select(vec![16usize, 16, 17, 32, 64]);
    let raw = prop::sample::select(vec![Dtype::F16, Dtype::F16, Dtype::Bf16]);
    let rows = (chunk, 0usize..6, prop::sample::select(vec![0usize, 1, 7, 16, 20]));
    let signs = prop::option::weighted(0.4, prop::sample::select(vec![0, u32::MAX]));
    let packing = (bits, tuned, any::<bool>(), signs);
    let shape = (1usize..3, 1usize..4, dims(), dims(), packing);
    let turned = (prop::option::of(prop::sample::select(Pairing::ALL.to_vec())), any::<bool>());
    (shape, rows, raw, 0u64..4, 2u64..24, turned).prop_map(
        |((layers, heads, head_dim_k, head_dim_v, packing), rows, raw, slab, budget, turned)| {
            let (bits, tuned, key_scale, signs) = packing;
            let (chunk, sinks, recent) = rows;
            let (pairing, paper) = turned;
            let profile = match tuned {
                Some(_) => Profile::Tuned,
                None if paper => Profile::Paper,
                None => Profile::Compat,
            };
            // All channels turn, or the first half.
            let channels = if paper { head_dim_k } else { head_dim_k / 2 };
            let rope = pairing.and_then(|pairing| Rope::with_theta(pairing, 1e4, channels).ok());
            let mut config = PoolConfig {
                key_scale,
                profile,
                rope,
                signs,
                layers,
                heads,
                head_dim_k,
                head_dim_v,
                bits: tuned.or(bits),
                chunk,
                sinks,
                recent,
                raw,
                byte_budget: 0,
                slab_bytes: 1 << 24,
            };
            let layout = config.layout().unwrap();
            let page = PageClass::ALL.map(|class| layout.bytes(class)).into_iter().max().unwrap();
            config.slab_bytes = page * (1 + 3 * slab) + 4 * slab;
            let budget = config.slab_bytes * budget * budget;
            config.byte_budget = budget.max(config.smallest_bytes().unwrap());
            config
        },
    )
}

/// Programs to be run, as a variable sets them, or so many.
fn programs(variable: &str, usual: u32) -> u32 {
    let set = std::env::var(variable).ok().and_then(|cases| cases.parse().ok());
    set.unwrap_or(usual)
}

/// Every so many programs a line says how many have been run.
fn count(programs: &AtomicUsize) {
    let count = 1 + programs.fetch_add(1, Ordering::Relaxed);
    if count.is_multiple_of(1000) {
        println!("{count} programs");
    }
}

fn settings(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    }
}

static EQUAL: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);
static APART: AtomicUsize = AtomicUsize::new(0);

proptest! {
    #![proptest_config(settings(programs("WGKV_DEVICE_CASES", 2_000)))]

    #[test]
    fn lives_on_both_paths(
        config in device_config(),
        seed in any::<u64>(),
        program in prop::collection::vec(op(), 1..16),
    ) {
        let mut world = World::both(&config);
        world.noise = crate::model::Noise::new(seed);
        world.begin();
        for op in &program {
            world.run(op);
            if world.apart {
                // The device kept another token with nearly the same score: another life from here.
                APART.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        world.check();
        let pages = world.end();
        let equal = EQUAL.fetch_add(pages.equal, Ordering::Relaxed) + pages.equal;
        let close = CLOSE.fetch_add(pages.close, Ordering::Relaxed) + pages.close;
        prop_assert!(close <= 3 + equal / 50, "{close} of {equal} pages are only close");
        prop_assert!(APART.load(Ordering::Relaxed) <= 2);
    }
}

proptest! {
    #![proptest_config(settings(programs("WGKV_CASES", 2_000)))]

    #[test]
    fn lives_on_the_host(
        config in config(),
        seed in any::<u64>(),
        program in prop::collection::vec(op(), 1..30),
    ) {
        static PROGRAMS: AtomicUsize = AtomicUsize::new(0);
        count(&PROGRAMS);
        let mut world = World::host(&config);
        world.noise = crate::model::Noise::new(seed);
        world.begin();
        for op in &program {
            world.run(op);
            world.check();
        }
        world.end();
    }
}
