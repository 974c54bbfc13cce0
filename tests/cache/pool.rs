//! Random lives of several sequences against the plain model.

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;
use wgkv::Error;
use wgkv::cache::pool::{Keep, Operation, Part, Pool, PoolConfig, SequenceId, Step};
use wgkv::layout::Bits;
use wgkv::layout::pool::PageClass;
use wgkv::shape::Dtype;

use crate::pool_model::{Eviction, Memory, Sequence, Shape, apart, check};

/// What a program does; sequences are chosen among those alive by remainder.
#[derive(Clone, Debug)]
pub enum Op {
    Begin,
    Prefill(Vec<(u8, u8)>),
    /// The sequence, the layer (or all), a seed for what is kept (or all), whether positions are
    /// told at once.
    Finish(u8, Option<u8>, Option<u32>, bool),
    Append(Vec<(u8, u8)>, bool),
    Flush(Vec<u8>),
    Trim(Vec<(u8, u8)>),
    Fork(u8),
    Free(u8),
    Tell(u8),
    Merge(Vec<u8>),
    /// Takes some sequences out and puts copies of them back in.
    Reload(Vec<u8>),
    Shrink,
}

/// A pool and everything that it is compared with.
pub struct World {
    pub pool: Pool,
    pub shape: Shape,
    pub memory: Memory,
    pub live: Vec<(SequenceId, Sequence)>,
    next_id: u64,
}

impl World {
    pub fn new(config: PoolConfig) -> Self {
        let shape = Shape {
            layers: config.layers,
            heads: config.heads,
            chunk: config.chunk,
            sinks: config.sinks,
            recent: config.recent,
            packs: config.bits.is_some(),
            scaled: config.bits.is_some() && config.key_scale,
        };
        let pool = Pool::new(config).unwrap();
        Self { pool, shape, memory: Memory::default(), live: Vec::new(), next_id: 0 }
    }

    /// Distinct sequences with tokens, and their places.
    fn parts(&self, chosen: &[(u8, u8)]) -> (Vec<usize>, Vec<Part>) {
        let mut places = Vec::new();
        let mut parts = Vec::new();
        for (sequence, tokens) in chosen {
            let Some(place) = (*sequence as usize).checked_rem(self.live.len()) else { continue };
            if !places.contains(&place) {
                places.push(place);
                let sequence = self.live[place].0;
                parts.push(Part { sequence, tokens: u32::from(*tokens) });
            }
        }
        (places, parts)
    }

    /// Plans; where the budget is reached, checks that it is and that nothing changed.
    fn plan(&mut self, operation: &Operation<'_>) -> Result<Step, Error> {
        let revision = self.pool.revision();
        let needs = self.pool.needs(operation);
        let plan = self.pool.plan(operation);
        assert_eq!(self.pool.revision(), revision);
        match &plan {
            Ok(step) => assert_eq!(*step.needs(), needs.unwrap()),
            Err(Error::OutOfBudget { needed, available }) => {
                let needs = needs.unwrap();
                assert!(!needs.fits());
                assert_eq!((needs.slab_bytes, needs.available), (*needed, *available));
                assert!(needed > available);
                check(&self.pool, &self.shape, &self.memory, &self.live);
            }
            Err(_) => assert!(needs.is_err()),
        }
        plan
    }

    fn book(&mut self, step: Step, kept: &[Vec<u32>]) {
        let (base, layers) = (self.next_id, self.shape.layers as u64);
        let id = |layer: usize, source: u32| base + u64::from(source) * layers + layer as u64;
        self.memory.carry_out(&self.pool, &step, id, kept);
        self.next_id += u64::from(step.source_rows()) * layers;
        self.pool.commit(step.clone()).unwrap();
        // Who copies a page leaves it to others, unless they pack it in the same step.
        for (layer, work) in step.layers() {
            let packed = |page| work.encodes.iter().any(|encode| encode.from == page);
            for copy in &work.raw_copies {
                assert!(
                    self.pool.owners(PageClass::Raw, layer, copy.from) > 0 || packed(copy.from)
                );
            }
            for copy in &work.sink_copies {
                assert!(self.pool.owners(PageClass::Sink, layer, copy.from) > 0);
            }
        }
    }

    /// Adds rows and returns whether the budget allowed it.
    pub fn add(&mut self, chosen: &[(u8, u8)], prompt: bool, flush: bool) -> bool {
        let (places, parts) = self.parts(chosen);
        let operation = if prompt {
            Operation::Prefill { parts: &parts }
        } else {
            Operation::Append { parts: &parts, flush }
        };
        let plan = self.plan(&operation);
        let any =
            |wrong: &dyn Fn(&Sequence) -> bool| places.iter().any(|&p| wrong(&self.live[p].1));
        let begun = |sequence: &Sequence| sequence.finished.contains(&true);
        let open = |sequence: &Sequence| sequence.seen > 0 && sequence.finished.contains(&false);
        let step = match plan {
            Ok(step) => step,
            Err(Error::OutOfBudget { .. }) => return false,
            Err(Error::Finished { .. }) => {
                assert!(prompt && any(&begun));
                return false;
            }
            Err(Error::Unfinished { .. }) => {
                assert!(!prompt && any(&open));
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!if prompt { any(&begun) } else { any(&open) });
        let base = self.next_id;
        self.book(step, &[]);
        let (shape, mut source) = (self.shape, 0);
        for (place, part) in places.iter().zip(&parts) {
            let sequence = &mut self.live[*place].1;
            for (index, head) in sequence.heads.iter_mut().enumerate() {
                let (layer, row) = (index / shape.heads, index % shape.heads);
                for token in 0..part.tokens {
                    let source = u64::from(source + row as u32 * part.tokens + token);
                    let id = base + source * shape.layers as u64 + layer as u64;
                    head.add(&shape, sequence.seen + token, id);
                }
            }
            sequence.seen += part.tokens;
            if prompt {
                sequence.origin = sequence.seen;
            } else if part.tokens > 0 {
                sequence.finished.fill(true);
            }
            source += shape.heads as u32 * part.tokens;
        }
        if flush {
            self.flush_model(&places);
        }
        true
    }

    fn flush_model(&mut self, places: &[usize]) {
        for place in places {
            self.live[*place].1.heads.iter_mut().for_each(|head| head.flush(&self.shape));
        }
    }

    pub fn flush(&mut self, chosen: &[u8]) {
        let chosen: Vec<(u8, u8)> = chosen.iter().map(|sequence| (*sequence, 0)).collect();
        let (places, parts) = self.parts(&chosen);
        let sequences: Vec<SequenceId> = parts.iter().map(|part| part.sequence).collect();
        match self.plan(&Operation::Flush { sequences: &sequences }) {
            Ok(step) => {
                self.book(step, &[]);
                self.flush_model(&places);
            }
            Err(Error::OutOfBudget { .. }) => {}
            Err(Error::Unfinished { .. }) => {
                let open = |s: &Sequence| s.seen > 0 && s.finished.contains(&false);
                assert!(places.iter().any(|&place| open(&self.live[place].1)));
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Finishes layers of a sequence; `keep` tells which positions of a layer and head stay.
    pub fn finish(
        &mut self,
        place: usize,
        layers: core::ops::Range<usize>,
        keep: Option<&dyn Fn(usize, usize) -> Vec<u32>>,
        tell: bool,
    ) -> bool {
        let (id, model) = &self.live[place];
        let (id, heads, tokens) = (*id, self.shape.heads, model.seen);
        let lists: Option<Vec<Vec<Vec<u32>>>> = keep.map(|keep| {
            layers.clone().map(|layer| (0..heads).map(|head| keep(layer, head)).collect()).collect()
        });
        let counts: Option<Vec<u32>> = lists
            .as_ref()
            .map(|lists| lists.iter().flatten().map(|positions| positions.len() as u32).collect());
        let flat: Vec<Vec<u32>> = lists.iter().flatten().map(|heads| heads.concat()).collect();
        let keep = counts.as_ref().map_or(Keep::All, |counts| Keep::Counts(counts));
        let begun = layers.clone().any(|layer| model.finished[layer]);
        let operation = Operation::Finish { sequence: id, layers: layers.clone(), keep };
        let step = match self.plan(&operation) {
            Ok(step) => step,
            Err(Error::OutOfBudget { .. }) => return false,
            Err(Error::Finished { .. }) => {
                assert!(begun);
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!begun);
        self.book(step, &flat);
        let shape = self.shape;
        let model = &mut self.live[place].1;
        for (at, layer) in layers.enumerate() {
            model.finished[layer] = true;
            for head in 0..heads {
                let state = &mut model.heads[layer * heads + head];
                if let Some(lists) = &lists {
                    state.keep(&shape, &lists[at][head]);
                }
                state.finish(&shape);
            }
            if let Some(lists) = &lists {
                let counts = lists[at].iter().map(|list| list.len() as u32).collect();
                let positions = flat[at].clone();
                let told = Cell::new(false);
                let eviction = Eviction { tokens, counts, positions, told };
                model.evicted[layer] = Some(Rc::new(eviction));
            }
        }
        if tell {
            self.tell(place);
        }
        true
    }

    pub fn tell(&mut self, place: usize) {
        let (id, model) = &self.live[place];
        for (layer, eviction) in model.evicted.iter().enumerate() {
            let Some(eviction) = eviction else { continue };
            let told = self.pool.set_positions(*id, layer, &eviction.positions);
            match told {
                Ok(()) => assert!(!eviction.told.replace(true)),
                Err(Error::Finished { .. }) => assert!(eviction.told.get()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn trim(&mut self, chosen: &[(u8, u8)]) -> bool {
        let (places, parts) = self.parts(chosen);
        let step = match self.plan(&Operation::Trim { parts: &parts }) {
            Ok(step) => step,
            Err(Error::OutOfBudget { .. }) => return false,
            Err(Error::TrimTooLong { got, held }) => {
                let first = places.iter().zip(&parts).find_map(|(&place, part)| {
                    let seen = self.live[place].1.seen;
                    (part.tokens > seen).then_some((part.tokens as usize, seen as usize))
                });
                assert_eq!(first, Some((got, held)));
                return false;
            }
            Err(Error::PositionsUnknown { layer }) => {
                let unknown = places.iter().zip(&parts).find_map(|(&place, part)| {
                    let model = &self.live[place].1;
                    let position = model.seen - part.tokens;
                    let needed = position < model.origin && position > self.shape.sinks as u32;
                    model.untold(&self.shape).filter(|_| needed)
                });
                assert_eq!(unknown, Some(layer));
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        self.book(step, &[]);
        let shape = self.shape;
        for (place, part) in places.iter().zip(&parts) {
            let model = &mut self.live[*place].1;
            model.seen -= part.tokens;
            model.origin = model.origin.min(model.seen);
            let seen = model.seen;
            model.heads.iter_mut().for_each(|head| head.trim(&shape, seen));
        }
        true
    }

    pub fn fork(&mut self, place: usize) {
        let (id, model) = &self.live[place];
        let fork = (self.pool.fork(*id).unwrap(), model.clone());
        self.live.push(fork);
    }

    pub fn free(&mut self, place: usize) {
        let (id, _) = self.live.remove(place);
        self.pool.free(id).unwrap();
        assert!(matches!(self.pool.free(id), Err(Error::UnknownSequence { .. })));
        assert!(matches!(self.pool.seen(id), Err(Error::UnknownSequence { .. })));
    }

    pub fn begin(&mut self) -> usize {
        let id = self.pool.begin();
        self.live.push((id, Sequence::new(&self.shape)));
        self.live.len() - 1
    }

    /// The tables of a batch are those of its members, side by side, and so are the units.
    fn merge(&self, chosen: &[u8]) {
        let place = |s: &u8| (*s as usize).checked_rem(self.live.len());
        let ids: Vec<SequenceId> =
            chosen.iter().filter_map(place).map(|place| self.live[place].0).collect();
        for layer in 0..self.shape.layers {
            let batch = self.pool.tables(&ids, layer).unwrap();
            let cut = batch.units(2).unwrap();
            for (member, id) in ids.iter().enumerate() {
                let alone = self.pool.tables(&[*id], layer).unwrap();
                let units = alone.units(2).unwrap();
                for head in 0..self.shape.heads {
                    let row = member * self.shape.heads + head;
                    let merged = self.memory.rows(&batch, layer, row);
                    assert_eq!(merged, self.memory.rows(&alone, layer, head));
                    let rows = |cut: &wgkv::cache::pool::Units, row: usize| {
                        let mut units: Vec<_> = PageClass::ALL
                            .iter()
                            .flat_map(|class| &cut.units[class.index()])
                            .filter(|unit| unit.row as usize == row)
                            .map(|unit| (unit.slot - cut.offsets[row], unit.pages, unit.rows))
                            .collect();
                        units.sort();
                        let slots = cut.offsets[row + 1] - cut.offsets[row];
                        assert!((0..slots).eq(units.iter().map(|unit| unit.0)));
                        let total: u32 = units.iter().map(|unit| unit.2).sum();
                        (units, total)
                    };
                    assert_eq!(rows(&cut, row), rows(&units, head));
                    assert_eq!(rows(&cut, row).1, batch.len(row));
                }
            }
        }
    }

    /// Puts copies of some sequences in: pages that they share stay shared among the copies.
    pub fn reload(&mut self, chosen: &[u8]) -> bool {
        let chosen: Vec<(u8, u8)> = chosen.iter().map(|sequence| (*sequence, 0)).collect();
        let (places, parts) = self.parts(&chosen);
        let ids: Vec<SequenceId> = parts.iter().map(|part| part.sequence).collect();
        let (snapshot, pages) = self.pool.snapshot(&ids).unwrap();
        let load = match self.pool.plan_load(&snapshot) {
            Ok(load) => load,
            Err(Error::OutOfBudget { needed, available }) => {
                assert!(needed > available);
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        for (layer, pages) in pages.iter().enumerate() {
            for (class, from) in PageClass::ALL.into_iter().zip(pages) {
                assert_eq!(load.pages(class, layer).len(), from.len());
                for (from, to) in from.iter().zip(load.pages(class, layer)) {
                    self.memory.copy(class, layer, *from, *to);
                }
            }
        }
        let ids = self.pool.commit_load(load).unwrap();
        let models: Vec<&Sequence> = places.iter().map(|place| &self.live[*place].1).collect();
        let copies = apart(&models);
        self.live.extend(ids.into_iter().zip(copies));
        true
    }

    pub fn check(&mut self) {
        self.memory.forget(&self.pool);
        check(&self.pool, &self.shape, &self.memory, &self.live);
    }

    /// Frees everything and checks that nothing stays.
    pub fn end(mut self) {
        while !self.live.is_empty() {
            self.free(0);
            self.check();
        }
        assert_eq!(self.pool.figures().parts.total(), 0);
        self.pool.shrink();
        assert_eq!(self.pool.allocated_bytes(), 0);
        assert_eq!(self.pool.figures().slabs, [0; 3]);
    }

    fn run(&mut self, op: &Op) {
        let place = |sequence: u8| (sequence as usize).checked_rem(self.live.len());
        match op {
            Op::Begin => {
                self.begin();
            }
            Op::Prefill(chosen) => {
                self.add(chosen, true, false);
            }
            Op::Append(chosen, flush) => {
                self.add(chosen, false, *flush);
            }
            Op::Flush(chosen) => self.flush(chosen),
            Op::Trim(chosen) => {
                self.trim(chosen);
            }
            Op::Finish(sequence, layer, keep, tell) => {
                let Some(place) = place(*sequence) else { return };
                let layers = match layer {
                    Some(layer) => {
                        let layer = *layer as usize % self.shape.layers;
                        layer..layer + 1
                    }
                    None => 0..self.shape.layers,
                };
                let (tokens, sinks) = (self.live[place].1.seen, self.shape.sinks as u32);
                let chosen = keep.map(|seed| {
                    move |layer: usize, head: usize| -> Vec<u32> {
                        // One head in four keeps everything, the others a random half.
                        let salt = (layer * 31 + head) as u32 ^ seed;
                        let whole = salt.is_multiple_of(4);
                        let mix = |p: u32| (p ^ salt).wrapping_mul(0x9e37_79b9) >> 31 == 0;
                        (0..tokens).filter(|p| whole || *p < sinks || mix(*p)).collect()
                    }
                });
                let keep = chosen.as_ref().map(|keep| keep as &dyn Fn(usize, usize) -> Vec<u32>);
                self.finish(place, layers, keep, *tell);
            }
            Op::Fork(sequence) => {
                if let Some(place) = place(*sequence) {
                    self.fork(place);
                }
            }
            Op::Free(sequence) => {
                if let Some(place) = place(*sequence) {
                    self.free(place);
                }
            }
            Op::Tell(sequence) => {
                if let Some(place) = place(*sequence) {
                    self.tell(place);
                }
            }
            Op::Merge(chosen) => self.merge(chosen),
            Op::Reload(chosen) => {
                self.reload(chosen);
            }
            Op::Shrink => {
                self.pool.shrink();
            }
        }
    }
}

fn parts(tokens: core::ops::Range<u8>) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0u8..6, tokens), 1..4)
}

fn op() -> impl Strategy<Value = Op> {
    let some = || prop::collection::vec(0u8..6, 0..5);
    prop_oneof![
        2 => Just(Op::Begin),
        4 => parts(0..20).prop_map(Op::Prefill),
        4 => (0u8..6, prop::option::of(0u8..2), prop::option::of(any::<u32>()), any::<bool>())
            .prop_map(|(sequence, layer, keep, tell)| Op::Finish(sequence, layer, keep, tell)),
        8 => (parts(0..12), prop::bool::weighted(0.7)).prop_map(|(p, f)| Op::Append(p, f)),
        1 => some().prop_map(Op::Flush),
        5 => parts(0..14).prop_map(Op::Trim),
        3 => (0u8..6).prop_map(Op::Fork),
        2 => (0u8..6).prop_map(Op::Free),
        1 => (0u8..6).prop_map(Op::Tell),
        1 => some().prop_map(Op::Merge),
        1 => some().prop_map(Op::Reload),
        1 => Just(Op::Shrink),
    ]
}

fn config() -> impl Strategy<Value = PoolConfig> {
    let packed = prop_oneof![
        1 => Just(None),
        2 => Just(Some((Bits::Two, Bits::Two))),
        2 => Just(Some((Bits::One, Bits::Two))),
    ];
    let packed = (packed, any::<bool>());
    (packed, 2usize..6, 0usize..5, 0usize..7, 0u64..5, 1u64..40).prop_map(
        |((bits, key_scale), chunk, sinks, recent, slab, budget)| {
            let mut config = PoolConfig {
                key_scale,
                profile: wgkv::layout::Profile::Compat,
                rope: None,
                signs: None,
                layers: 2,
                heads: 2,
                head_dim_k: 16,
                head_dim_v: 8,
                bits,
                chunk,
                sinks,
                recent,
                raw: Dtype::F16,
                byte_budget: 0,
                slab_bytes: 1 << 20,
            };
            let layout = config.layout().unwrap();
            let page = PageClass::ALL.map(|class| layout.bytes(class)).into_iter().max().unwrap();
            config.slab_bytes = page * (1 + 3 * slab) + 4 * slab;
            // From a few slabs to more than a program can fill.
            let budget = config.slab_bytes * budget * budget;
            config.byte_budget = budget.max(config.smallest_bytes().unwrap());
            config
        },
    )
}

fn programs() -> u32 {
    let set = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    set.unwrap_or(2_500)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: programs(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn lives(config in config(), program in prop::collection::vec(op(), 1..40)) {
        let mut world = World::new(config);
        world.begin();
        for op in &program {
            world.run(op);
            world.check();
        }
        world.end();
    }
}
