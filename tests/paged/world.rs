//! Sequences in a paged cache on one path or both, beside the plain model of them.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use wgkv::Error;
use wgkv::cache::pool::{Keep, Operation, Part, Pool, PoolConfig, SequenceId};
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::nestedkv::{self, Budget, EvictConfig};
use wgkv::shape::{Dtype, Tensor};

use crate::model::{Contents, Data, Noise, close_rows};
use crate::pool_model::{Eviction, Head, Row, Sequence, Shape, apart, check_account};
use crate::twin::{Device, Fetched, Host, Incoming, Twin};

/// How a prompt is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    All,
    Uniform(u32),
    Adaptive(u32),
}

impl Finish {
    /// The eviction that it asks for in a pool of so many heads and sinks.
    pub fn config(self, shape: &Shape) -> Option<EvictConfig> {
        let budget = match self {
            Self::All => return None,
            Self::Uniform(tokens) => Budget::Uniform(tokens),
            Self::Adaptive(per_head) => Budget::Adaptive { per_head, heads: shape.heads },
        };
        Some(EvictConfig { sinks: shape.sinks as u32, ..EvictConfig::new(budget) })
    }
}

/// How many pages of a device were equal to those of the host, and how many only close: packed ones
/// with a scale, mean or code on the other side of a near tie, and what came back from such a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    pub equal: usize,
    pub close: usize,
}

/// A page of a layer, and its words; `None` for those that mean nothing.
type Name = (PageClass, PageId);
type Meant = Vec<Option<u32>>;

pub struct World {
    pub shape: Shape,
    pub contents: Contents,
    pub live: Vec<(SequenceId, Sequence)>,
    pub host: Host,
    pub device: Option<Device>,
    pub noise: Noise,
    pub pages: Pages,
    /// Set once the device kept another token than the host, whose scores nearly tie.
    pub apart: bool,
    pub dims: [usize; 2],
}

impl World {
    pub fn new(config: &PoolConfig, device: Option<Device>) -> Self {
        let shape = Shape {
            layers: config.layers,
            heads: config.heads,
            chunk: config.chunk,
            sinks: config.sinks,
            recent: config.recent,
            packs: config.bits.is_some(),
            scaled: config.bits.is_some() && config.key_scale,
        };
        Self {
            shape,
            contents: Contents::new(config),
            live: Vec::new(),
            host: Host::new(config),
            device,
            noise: Noise::new(1),
            pages: Pages::default(),
            apart: false,
            dims: [config.head_dim_k, config.head_dim_v],
        }
    }

    /// On the host alone.
    pub fn host(config: &PoolConfig) -> Self {
        Self::new(config, None)
    }

    /// On both paths.
    pub fn both(config: &PoolConfig) -> Self {
        Self::new(config, Some(Device::new(crate::support::context(), config)))
    }

    /// Distinct sequences with tokens, and their places.
    fn parts(&self, chosen: &[(u8, u32)]) -> (Vec<usize>, Vec<Part>) {
        let mut places = Vec::new();
        let mut parts = Vec::new();
        for (sequence, tokens) in chosen {
            let Some(place) = (*sequence as usize).checked_rem(self.live.len()) else { continue };
            if !places.contains(&place) {
                places.push(place);
                parts.push(Part { sequence: self.live[place].0, tokens: *tokens });
            }
        }
        (places, parts)
    }

    /// Does the same on both paths, which must say the same.
    pub fn on_both<T: PartialEq + core::fmt::Debug>(
        &mut self,
        mut work: impl FnMut(&mut dyn Twin) -> wgkv::Result<T>,
    ) -> wgkv::Result<T> {
        let revision = self.host.pool().revision();
        let result = work(&mut self.host);
        if result.is_err() {
            assert_eq!(self.host.pool().revision(), revision, "a refusal changes nothing");
        }
        if let Some(device) = &mut self.device {
            match (work(device), &result) {
                (Ok(other), Ok(result)) => assert_eq!(other, *result),
                (Err(other), Err(result)) => assert_eq!(other.to_string(), result.to_string()),
                (other, result) => panic!("the device says {other:?}, the host {result:?}"),
            }
        }
        result
    }

    fn step(&mut self, operation: &Operation<'_>, incoming: &[Incoming]) -> wgkv::Result<()> {
        let needs = self.host.pool().needs(operation);
        let result = self.on_both(|twin| twin.step(operation, incoming));
        if let Err(Error::OutOfBudget { .. }) = &result {
            assert!(!needs.as_ref().unwrap().fits());
        } else {
            assert_eq!(result.is_ok(), needs.is_ok(), "{result:?}");
        }
        result
    }

    pub fn begin(&mut self) -> usize {
        let id = self.on_both(|twin| Ok(twin.begin())).unwrap();
        self.live.push((id, Sequence::new(&self.shape)));
        self.live.len() - 1
    }

    pub fn fork(&mut self, place: usize) -> usize {
        let (id, model) = self.live[place].clone();
        let fork = self.on_both(|twin| twin.fork(id)).unwrap();
        self.live.push((fork, model));
        self.live.len() - 1
    }

    pub fn free(&mut self, place: usize) {
        let (id, _) = self.live.remove(place);
        self.on_both(|twin| twin.free(id)).unwrap();
        let gone = self.on_both(|twin| twin.free(id));
        assert!(matches!(gone, Err(Error::UnknownSequence { .. })));
    }

    pub fn shrink(&mut self) {
        self.on_both(|twin| twin.shrink()).unwrap();
    }

    /// Random rows of every layer for a batch.
    pub fn incoming(&mut self, parts: &[u32], dtype: Dtype) -> Vec<Incoming> {
        let rows = parts.iter().sum::<u32>() as usize * self.shape.heads;
        let mut layer = || {
            let [keys, values] = self.dims.map(|d| Data::new(dtype, &self.noise.rows(rows, d)));
            Incoming { keys, values }
        };
        (0..self.shape.layers).map(|_| layer()).collect()
    }

    /// Adds random rows and returns whether that was allowed.
    pub fn add(&mut self, chosen: &[(u8, u32)], prompt: bool, flush: bool, dtype: Dtype) -> bool {
        let (_, parts) = self.parts(chosen);
        let tokens: Vec<u32> = parts.iter().map(|part| part.tokens).collect();
        let incoming = self.incoming(&tokens, dtype);
        self.add_rows(chosen, prompt, flush, &incoming)
    }

    /// Adds given rows, laid out as a batch's.
    pub fn add_rows(
        &mut self,
        chosen: &[(u8, u32)],
        prompt: bool,
        flush: bool,
        incoming: &[Incoming],
    ) -> bool {
        let (places, parts) = self.parts(chosen);
        let operation = if prompt {
            Operation::Prefill { parts: &parts }
        } else {
            Operation::Append { parts: &parts, flush }
        };
        let begun = |model: &Sequence| model.finished.contains(&true);
        let open = |model: &Sequence| model.seen > 0 && model.finished.contains(&false);
        let wrong = places.iter().any(|&place| {
            let model = &self.live[place].1;
            if prompt { begun(model) } else { open(model) }
        });
        match self.step(&operation, incoming) {
            Ok(()) => assert!(!wrong),
            Err(Error::OutOfBudget { .. }) => return false,
            Err(Error::Finished { .. } | Error::Unfinished { .. }) if wrong => return false,
            Err(error) => panic!("{error}"),
        }
        self.book(&places, &parts, prompt, incoming);
        if flush {
            self.flush_model(&places);
        }
        true
    }

    /// Books rows that were added to one sequence and flushed.
    pub fn booked(&mut self, place: usize, tokens: u32, incoming: &[Incoming]) {
        let parts = [Part { sequence: self.live[place].0, tokens }];
        self.book(&[place], &parts, false, incoming);
        self.flush_model(&[place]);
    }

    fn book(&mut self, places: &[usize], parts: &[Part], prompt: bool, incoming: &[Incoming]) {
        let (shape, dims) = (self.shape, self.dims);
        for layer in 0..shape.layers {
            let sides = [incoming[layer].keys.floats(), incoming[layer].values.floats()];
            let mut source = 0;
            for (place, part) in places.iter().zip(parts) {
                let sequence = &mut self.live[*place].1;
                for head in 0..shape.heads {
                    for token in 0..part.tokens {
                        let row =
                            [0, 1].map(|side| &sides[side][source * dims[side]..][..dims[side]]);
                        let id = self.contents.add(row);
                        let head = &mut sequence.heads[layer * shape.heads + head];
                        head.add(&shape, sequence.seen + token, id);
                        source += 1;
                    }
                }
            }
        }
        for (place, part) in places.iter().zip(parts) {
            let sequence = &mut self.live[*place].1;
            sequence.seen += part.tokens;
            if prompt {
                sequence.origin = sequence.seen;
            } else if part.tokens > 0 {
                sequence.finished.fill(true);
            }
        }
    }

    fn flush_model(&mut self, places: &[usize]) {
        for place in places {
            self.live[*place].1.heads.iter_mut().for_each(|head| head.flush(&self.shape));
        }
    }

    pub fn flush(&mut self, chosen: &[u8]) -> bool {
        let chosen: Vec<(u8, u32)> = chosen.iter().map(|sequence| (*sequence, 0)).collect();
        let (places, parts) = self.parts(&chosen);
        let sequences: Vec<SequenceId> = parts.iter().map(|part| part.sequence).collect();
        let open = |model: &Sequence| model.seen > 0 && model.finished.contains(&false);
        match self.step(&Operation::Flush { sequences: &sequences }, &[]) {
            Ok(()) => {
                self.flush_model(&places);
                true
            }
            Err(Error::OutOfBudget { .. }) => false,
            Err(Error::Unfinished { .. }) => {
                assert!(places.iter().any(|&place| open(&self.live[place].1)));
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The tokens that an eviction keeps of each head in a layer, by the score of the model's keys.
    fn kept(&mut self, place: usize, layer: usize, config: &EvictConfig) -> Vec<Vec<u32>> {
        let heads = self.shape.heads;
        let model = &self.live[place].1;
        let keys: Vec<u16> = model.heads[layer * heads..(layer + 1) * heads]
            .iter()
            .flat_map(|head| self.contents.bits(&head.rows, 0))
            .collect();
        let keys = Data::of_bits(self.contents.raw, &keys);
        let tokens = model.seen as usize;
        let keys = Tensor::new("keys", keys.elements(), heads, tokens, self.dims[0]).unwrap();
        let scores = nestedkv::cpu::score_batched(&keys, &config.score).unwrap();
        let kept = nestedkv::cpu::keep(&scores.score, heads, tokens, config).unwrap();
        (0..heads).map(|head| kept.row(head).to_vec()).collect()
    }

    /// Finishes layers of a prompt one after another and returns whether all could be.
    pub fn finish(
        &mut self,
        place: usize,
        layers: core::ops::Range<usize>,
        how: Finish,
        tell: bool,
    ) -> bool {
        let id = self.live[place].0;
        let begun = |world: &Self, layers: core::ops::Range<usize>| {
            layers.clone().any(|layer| world.live[place].1.finished[layer])
        };
        let config = how.config(&self.shape).filter(|_| self.live[place].1.seen > 0);
        let Some(config) = config else {
            let wrong = begun(self, layers.clone());
            let operation =
                Operation::Finish { sequence: id, layers: layers.clone(), keep: Keep::All };
            match self.step(&operation, &[]) {
                Ok(()) => assert!(!wrong),
                Err(Error::OutOfBudget { .. }) => return false,
                Err(Error::Finished { .. }) if wrong => return false,
                Err(error) => panic!("{error}"),
            }
            layers.for_each(|layer| self.finish_model(place, layer, None));
            return true;
        };
        for layer in layers {
            let wrong = begun(self, layer..layer + 1);
            let scored = self.host.evict(id, layer, &config);
            let (counts, positions) = match scored {
                Ok(scored) => {
                    assert!(!wrong);
                    scored
                }
                Err(Error::Finished { .. }) if wrong => return false,
                Err(error) => panic!("{error}"),
            };
            let kept = self.kept(place, layer, &config);
            assert_eq!(positions, kept.concat());
            assert_eq!(counts, kept.iter().map(|kept| kept.len() as u32).collect::<Vec<_>>());
            if let Some(device) = &mut self.device
                && device.evict(id, layer, &config).unwrap() != (counts.clone(), positions.clone())
            {
                self.apart = true;
                return false;
            }
            match self.on_both(|twin| twin.finish_evicted()) {
                Ok(()) => {}
                Err(Error::OutOfBudget { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
            self.finish_model(place, layer, Some(kept));
            if tell {
                self.tell(place);
            }
        }
        true
    }

    fn finish_model(&mut self, place: usize, layer: usize, kept: Option<Vec<Vec<u32>>>) {
        let shape = self.shape;
        let model = &mut self.live[place].1;
        model.finished[layer] = true;
        for head in 0..shape.heads {
            let state = &mut model.heads[layer * shape.heads + head];
            if let Some(kept) = &kept {
                state.keep(&shape, &kept[head]);
            }
            state.finish(&shape);
        }
        model.evicted[layer] = kept.map(|kept| {
            let counts = kept.iter().map(|list| list.len() as u32).collect();
            let (tokens, positions) = (model.seen, kept.concat());
            Rc::new(Eviction { tokens, counts, positions, told: Cell::new(false) })
        });
    }

    pub fn tell(&mut self, place: usize) {
        let (id, model) = self.live[place].clone();
        for (layer, eviction) in model.evicted.iter().enumerate() {
            let Some(eviction) = eviction else { continue };
            match self.on_both(|twin| twin.told(id, layer, &eviction.positions)) {
                Ok(()) => assert!(!eviction.told.replace(true)),
                Err(Error::Finished { .. }) => assert!(eviction.told.get()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn trim(&mut self, chosen: &[(u8, u32)]) -> bool {
        let (places, parts) = self.parts(chosen);
        match self.step(&Operation::Trim { parts: &parts }, &[]) {
            Ok(()) => {}
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
        }
        for (place, part) in places.iter().zip(&parts) {
            let model = &mut self.live[*place].1;
            model.seen -= part.tokens;
            model.origin = model.origin.min(model.seen);
            for head in &mut model.heads {
                let before = (head.rows.clone(), head.scale.clone());
                head.trim(&self.shape, model.seen);
                self.contents.restore(&self.shape, (&before.0, &before.1), head);
            }
        }
        true
    }

    /// Places and names of members of a batch; one may come more than once.
    pub fn members(&self, chosen: &[u8]) -> (Vec<usize>, Vec<SequenceId>) {
        let place = |s: &u8| (*s as usize).checked_rem(self.live.len());
        let places: Vec<usize> = chosen.iter().filter_map(place).collect();
        let ids = places.iter().map(|place| self.live[*place].0).collect();
        (places, ids)
    }

    /// Fetches a batch and checks every row; what a packed row of a device reads may differ by
    /// rounding.
    pub fn fetch(&mut self, chosen: &[u8], layer: usize, spare: usize, dtype: Dtype) {
        let (places, ids) = self.members(chosen);
        let (shape, dims) = (self.shape, self.dims);
        let heads = |world: &Self, place: usize| {
            world.live[place].1.heads[layer * shape.heads..(layer + 1) * shape.heads].to_vec()
        };
        let heads: Vec<Head> = places.iter().flat_map(|place| heads(self, *place)).collect();
        let longest = heads.iter().map(|head| head.rows.len()).max().unwrap_or(0);
        if longest > 0 {
            let short = self.on_both(|twin| twin.fetch(&ids, layer, longest - 1, dtype).map(drop));
            assert!(matches!(short, Err(Error::OutOfRange { argument: "tokens", .. })));
        }
        let tokens = longest + spare;
        let fetched = self.host.fetch(&ids, layer, tokens, dtype).unwrap();
        let other =
            self.device.as_mut().map(|device| device.fetch(&ids, layer, tokens, dtype).unwrap());
        for (row, head) in heads.iter().enumerate() {
            let at = row * tokens;
            let positions = head.rows.iter().map(|row| row.position);
            let rest = core::iter::repeat_n(u32::MAX, tokens - head.rows.len());
            let positions: Vec<u32> = positions.chain(rest).collect();
            assert_eq!(fetched.positions[at..at + tokens], positions);
            for side in [0, 1] {
                let d = dims[side];
                let mut expected = self.contents.read(&shape, head, side);
                expected.resize(tokens * d, 0.0);
                let expected = Data::new(dtype, &expected).floats();
                let side_of = |fetched: &Fetched| match side {
                    0 => fetched.keys[at * d..(at + tokens) * d].to_vec(),
                    _ => fetched.values[at * d..(at + tokens) * d].to_vec(),
                };
                assert_eq!(side_of(&fetched), expected);
                if let Some(other) = &other {
                    assert_eq!(other.positions, fetched.positions);
                    close_rows(&side_of(other), &expected, d);
                }
            }
        }
    }

    /// Saves some sequences and adds those of the file: what they share stays shared among them.
    pub fn reload(&mut self, chosen: &[u8]) -> bool {
        let chosen: Vec<(u8, u32)> = chosen.iter().map(|sequence| (*sequence, 0)).collect();
        let (places, parts) = self.parts(&chosen);
        let ids: Vec<SequenceId> = parts.iter().map(|part| part.sequence).collect();
        // Each from its own file: equal but for chunks that the device packed with another code.
        let mut files = vec![self.host.save(&ids).unwrap()];
        if let Some(device) = &mut self.device {
            let other = device.save(&ids).unwrap();
            assert_eq!(other.len(), files[0].len());
            self.pages.close += usize::from(other != files[0]);
            files.push(other);
        }
        let mut files = files.iter();
        let ids = match self.on_both(|twin| twin.load(files.next().expect("a file a twin"))) {
            Ok(ids) => ids,
            Err(Error::OutOfBudget { needed, available }) => {
                assert!(needed > available);
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        let models: Vec<&Sequence> = places.iter().map(|place| &self.live[*place].1).collect();
        let copies = apart(&models);
        self.live.extend(ids.into_iter().zip(copies));
        true
    }

    /// The words that mean something of every page of a sequence, page after page, by twin.
    pub fn show(&mut self, place: usize) -> Vec<Vec<Vec<u32>>> {
        let (id, model) = self.live[place].clone();
        let mut twins: Vec<&mut dyn Twin> = vec![&mut self.host];
        twins.extend(self.device.as_mut().map(|device| device as &mut dyn Twin));
        let mut shown = vec![Vec::new(); twins.len()];
        for layer in 0..self.shape.layers {
            for row in 0..self.shape.heads {
                let head = &model.heads[layer * self.shape.heads + row];
                let expected = self.contents.pages(&self.shape, head);
                for (twin, shown) in twins.iter_mut().zip(&mut shown) {
                    let ids = page_ids(twin.pool(), id, layer, row);
                    let names = expected.iter().map(|page| page.0).zip(ids).collect::<Vec<_>>();
                    let words = twin.pages(layer, &names);
                    shown.extend(expected.iter().zip(words).map(|((_, expected), words)| {
                        let word = |(word, known): (u32, &Option<u32>)| known.map_or(0, |_| word);
                        words.into_iter().zip(expected).map(word).collect::<Vec<u32>>()
                    }));
                }
            }
        }
        shown
    }

    /// Rows of a head.
    pub fn head(&self, place: usize, layer: usize, head: usize) -> &Head {
        &self.live[place].1.heads[layer * self.shape.heads + head]
    }

    pub fn rows(&self, place: usize, layer: usize, head: usize) -> &[Row] {
        &self.head(place, layer, head).rows
    }

    /// Checks the account, every word of every page of every sequence, and the bytes.
    pub fn check(&mut self) {
        check_account(self.host.pool(), &self.shape, &self.live);
        assert_eq!(self.host.allocated(), self.host.pool().allocated_bytes());
        for layer in 0..self.shape.layers {
            let named = self.named(layer);
            let words = self.host.pages(layer, &named.iter().map(|n| n.0).collect::<Vec<_>>());
            for ((page, expected), words) in named.iter().zip(words) {
                assert_eq!(words.len(), expected.len());
                let differs = expected.iter().zip(&words).any(|(e, w)| e.is_some_and(|e| e != *w));
                assert!(!differs, "layer {layer} {page:?}: {words:x?}, not {expected:x?}");
            }
        }
        self.check_device();
    }

    /// Checks that the device holds what the host holds.
    fn check_device(&mut self) {
        let Some(device) = &mut self.device else { return };
        let (host, pool) = (self.host.pool(), device.pool());
        assert_eq!(host.figures(), pool.figures());
        assert_eq!(device.allocated(), pool.allocated_bytes());
        for layer in 0..self.shape.layers {
            for (id, _) in &self.live {
                let tables = |pool: &Pool| pool.tables(&[*id], layer).unwrap();
                assert_eq!(tables(self.host.pool()), tables(self.device.as_ref().unwrap().pool()));
            }
            let named = self.named(layer);
            let names: Vec<_> = named.iter().map(|named| named.0).collect();
            let device = self.device.as_mut().unwrap();
            let pairs = self.host.pages(layer, &names).into_iter().zip(device.pages(layer, &names));
            for (((_, means), (host, device)), name) in named.iter().zip(pairs).zip(&names) {
                let same = means.iter().zip(&host).zip(&device);
                if same.filter(|((means, _), _)| means.is_some()).all(|((_, a), b)| a == b) {
                    self.pages.equal += 1;
                } else {
                    self.pages.close += 1;
                    self.close_page(name.0, means, &host, &device);
                }
            }
        }
    }

    /// Checks that a page of the device reads nearly as that of the host.
    fn close_page(&self, class: PageClass, means: &[Option<u32>], host: &[u32], device: &[u32]) {
        let layout = &self.contents.layout;
        let positions = layout.positions_offset(class);
        // Not the key scale, which follows the positions.
        let own = &means[positions..positions + layout.rows(class)];
        let rows = own.iter().filter(|word| word.is_some()).count();
        assert_eq!(host[positions..positions + rows], device[positions..positions + rows]);
        if class == PageClass::Sink {
            // Factors differ by one step of f16 at most.
            let scale = layout.scale_offset()..layout.scale_offset() + layout.scale_words();
            let known = scale.filter(|at| means[*at].is_some());
            let halves = |word: u32| [word & 0xffff, word >> 16];
            let mut pairs = known.flat_map(|at| {
                halves(host[at]).into_iter().zip(halves(device[at])).collect::<Vec<_>>()
            });
            assert!(pairs.all(|(a, b)| a.abs_diff(b) <= 1));
        }
        for side in [0, 1] {
            let read = |page: &[u32]| self.contents.page_rows(class, side, page, rows);
            close_rows(&read(device), &read(host), self.dims[side]);
        }
    }

    /// Every page held in a layer, once, with what its words must be.
    fn named(&mut self, layer: usize) -> Vec<(Name, Meant)> {
        let mut pages: HashMap<Name, Meant> = HashMap::new();
        for (id, model) in &self.live {
            for row in 0..self.shape.heads {
                let head = &model.heads[layer * self.shape.heads + row];
                let expected = self.contents.pages(&self.shape, head);
                let ids = page_ids(self.host.pool(), *id, layer, row);
                assert_eq!(ids.len(), expected.len());
                for (page, (class, words)) in ids.into_iter().zip(expected) {
                    // A shared page may hold rows that one of its owners has trimmed away.
                    let known = pages.entry((class, page)).or_insert_with(|| words.clone());
                    for (known, word) in known.iter_mut().zip(&words) {
                        assert!(known.is_none() || word.is_none() || *known == *word);
                        *known = known.or(*word);
                    }
                }
            }
        }
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|page| page.0);
        pages
    }

    /// Frees everything and checks that nothing stays.
    pub fn empty(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        self.check();
        self.shrink();
        let twins = [Some(&mut self.host as &mut dyn Twin), self.device.as_mut().map(|d| d as _)];
        for twin in twins.into_iter().flatten() {
            assert_eq!(twin.pool().figures().parts.total(), 0);
            assert_eq!(twin.pool().figures().slabs, [0; 3]);
            assert_eq!(twin.pool().allocated_bytes(), 0);
            assert_eq!(twin.allocated(), 0);
        }
    }

    /// Lets both paths go on together after one kept another token: without sequences they do.
    pub fn clear_apart(&mut self) {
        if core::mem::take(&mut self.apart) {
            while let Some((id, _)) = self.live.pop() {
                self.on_both(|twin| twin.free(id)).unwrap();
            }
        }
    }

    /// Ends in an empty pool.
    pub fn end(mut self) -> Pages {
        self.empty();
        self.pages
    }
}

/// Pages of one head in the order sinks, packed, tail.
fn page_ids(pool: &Pool, id: SequenceId, layer: usize, head: usize) -> Vec<PageId> {
    let tables = pool.tables(&[id], layer).unwrap();
    let span = |offsets: &[u32]| offsets[head] as usize..offsets[head + 1] as usize;
    let sink = Some(tables.sinks[head]).filter(|page| !page.is_none());
    let packed = &tables.packed[span(&tables.packed_offsets)];
    let tail = &tables.tail[span(&tables.tail_offsets)];
    sink.iter().chain(packed).chain(tail).copied().collect()
}

/// Rows that depend on nothing but the story that they belong to, its layer, head and token, as a
/// batch brings them in: parts are a story, its first token and tokens.
pub fn tell(world: &World, dtype: Dtype, parts: &[(u64, u32, u32)]) -> Vec<Incoming> {
    let shape = world.shape;
    let layer = |layer: usize| {
        let [keys, values] = [0, 1].map(|side| {
            let mut rows = Vec::new();
            for (story, first, tokens) in parts {
                for head in 0..shape.heads {
                    for token in *first..first + tokens {
                        let place = (layer * shape.heads + head) * 2 + side;
                        let seed = (story << 32 | u64::from(token)) * 64 + place as u64;
                        let mut noise = Noise::new(seed);
                        noise.bits();
                        rows.extend(noise.rows(1, world.dims[side]));
                    }
                }
            }
            Data::new(dtype, &rows)
        });
        Incoming { keys, values }
    };
    (0..shape.layers).map(layer).collect()
}
