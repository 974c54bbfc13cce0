//! A plain model of a pool: each head is a list of rows, each page a counted reference. It goes
//! row by row and knows nothing of how the pool plans. Beside it a memory of named rows that does
//! what steps say.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use wgkv::cache::pool::{Pool, SequenceId, Step};
use wgkv::layout::pool::{PageClass, PageId};

/// A row as it is held: where it belongs, which row it is, how often it came back from a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub position: u32,
    pub id: u64,
    pub packed: bool,
    pub restored: u32,
}

/// A page of the model; its owners are the clones of the reference.
pub type Page = Rc<u8>;

fn page() -> Page {
    Rc::new(0)
}

/// A page that may be written to: this one, or a copy if others hold it.
fn writable(page: &mut Page) {
    if Rc::strong_count(page) > 1 {
        *page = self::page();
    }
}

#[derive(Clone, Debug, Default)]
pub struct Head {
    pub rows: Vec<Row>,
    pub sink: Option<Page>,
    pub packed: Vec<Page>,
    pub tail: Vec<Page>,
    /// Rows that the key scale was fixed from; none where there is none.
    pub scale: Rc<Vec<u64>>,
}

#[derive(Debug)]
pub struct Eviction {
    pub tokens: u32,
    pub counts: Vec<u32>,
    /// Positions, head after head.
    pub positions: Vec<u32>,
    pub told: Cell<bool>,
}

#[derive(Clone, Debug)]
pub struct Sequence {
    pub seen: u32,
    pub origin: u32,
    pub finished: Vec<bool>,
    pub evicted: Vec<Option<Rc<Eviction>>>,
    /// Layer after layer.
    pub heads: Vec<Head>,
}

/// The numbers of a pool that its model needs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub chunk: usize,
    pub sinks: usize,
    pub recent: usize,
    pub packs: bool,
    /// Whether packed keys are under key scales.
    pub scaled: bool,
}

impl Head {
    pub fn add(&mut self, shape: &Shape, position: u32, id: u64) {
        if self.rows.len() < shape.sinks {
            match &mut self.sink {
                Some(sink) => writable(sink),
                None => self.sink = Some(page()),
            }
        } else {
            let behind = self.rows.len() - shape.sinks - self.packed.len() * shape.chunk;
            match self.tail.last_mut() {
                Some(last) if !behind.is_multiple_of(shape.chunk) => writable(last),
                _ => self.tail.push(page()),
            }
        }
        self.rows.push(Row { position, id, packed: false, restored: 0 });
    }

    pub fn flush(&mut self, shape: &Shape) {
        self.flush_from(shape, 1);
    }

    /// Packs what a prompt leaves behind the frontier.
    pub fn finish(&mut self, shape: &Shape) {
        self.flush_from(shape, 8);
    }

    /// A key scale is fixed from so many chunks at most.
    fn flush_from(&mut self, shape: &Shape, chunks: usize) {
        let fixes = shape.scaled && self.packed.is_empty();
        let raw = |head: &Self| {
            head.rows.len().saturating_sub(shape.sinks + head.packed.len() * shape.chunk)
        };
        if fixes && raw(self) >= shape.recent + shape.chunk {
            match &mut self.sink {
                Some(sink) => writable(sink),
                None => self.sink = Some(page()),
            }
        }
        while shape.packs && raw(self) >= shape.recent + shape.chunk {
            let first = shape.sinks + self.packed.len() * shape.chunk;
            for row in &mut self.rows[first..first + shape.chunk] {
                row.packed = true;
            }
            self.tail.remove(0);
            self.packed.push(page());
        }
        if fixes && !self.packed.is_empty() {
            let rows = &self.rows[shape.sinks..][..self.packed.len().min(chunks) * shape.chunk];
            self.scale = Rc::new(rows.iter().map(|row| row.id).collect());
        }
    }

    pub fn keep(&mut self, shape: &Shape, positions: &[u32]) {
        if positions.len() < self.rows.len() {
            self.rows.retain(|row| positions.contains(&row.position));
            let pages = self.rows.len().saturating_sub(shape.sinks).div_ceil(shape.chunk);
            self.tail = (0..pages).map(|_| page()).collect();
        }
    }

    pub fn trim(&mut self, shape: &Shape, position: u32) {
        let before = self.rows.len();
        self.rows.retain(|row| row.position < position);
        if self.rows.len() == before {
            return;
        }
        let behind = self.rows.len().saturating_sub(shape.sinks);
        if behind >= self.packed.len() * shape.chunk {
            let raw = behind - self.packed.len() * shape.chunk;
            self.tail.truncate(raw.div_ceil(shape.chunk));
        } else {
            self.packed.truncate(behind / shape.chunk);
            self.tail.clear();
            let back = behind % shape.chunk;
            if back > 0 {
                self.tail.push(page());
            }
            let first = self.rows.len() - back;
            for row in &mut self.rows[first..] {
                row.packed = false;
                row.restored += 1;
            }
        }
        if self.packed.is_empty() {
            self.scale = Rc::default();
        }
        if self.rows.is_empty() || shape.sinks == 0 && self.packed.is_empty() {
            self.sink = None;
        }
    }
}

impl Sequence {
    pub fn new(shape: &Shape) -> Self {
        Self {
            seen: 0,
            origin: 0,
            finished: vec![false; shape.layers],
            evicted: vec![None; shape.layers],
            heads: vec![Head::default(); shape.layers * shape.heads],
        }
    }

    /// The first layer in which positions that nobody told would be needed.
    pub fn untold(&self, shape: &Shape) -> Option<usize> {
        (0..shape.layers).find(|&layer| (0..shape.heads).any(|head| !self.told(layer, head)))
    }

    /// Whether the positions of a head can be known.
    pub fn told(&self, layer: usize, head: usize) -> bool {
        let whole = |e: &Eviction| e.counts[head] == e.tokens;
        self.evicted[layer].as_deref().is_none_or(|e| e.told.get() || whole(e))
    }
}

/// Copies of sequences that share with each other what these share, and nothing with these.
pub fn apart(sequences: &[&Sequence]) -> Vec<Sequence> {
    let mut pages: HashMap<*const u8, Page> = HashMap::new();
    let mut evictions: HashMap<*const Eviction, Rc<Eviction>> = HashMap::new();
    let mut copies: Vec<Sequence> = sequences.iter().map(|sequence| (*sequence).clone()).collect();
    for copy in &mut copies {
        for head in &mut copy.heads {
            let lists = head.sink.iter_mut().chain(&mut head.packed).chain(&mut head.tail);
            for held in lists {
                *held = pages.entry(Rc::as_ptr(held)).or_insert_with(page).clone();
            }
        }
        for eviction in copy.evicted.iter_mut().flatten() {
            let fresh = || {
                Rc::new(Eviction {
                    tokens: eviction.tokens,
                    counts: eviction.counts.clone(),
                    positions: eviction.positions.clone(),
                    told: eviction.told.clone(),
                })
            };
            let copy = evictions.entry(Rc::as_ptr(eviction)).or_insert_with(fresh).clone();
            *eviction = copy;
        }
    }
    copies
}

/// Pages of named rows, in place of slabs of numbers.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pages: HashMap<Place, Vec<Option<Row>>>,
}

/// Where a page lies: its class, layer and number.
pub type Place = (PageClass, usize, PageId);

impl Memory {
    fn read(&self, place: Place, slot: usize) -> Row {
        self.pages[&place][slot].unwrap_or_else(|| panic!("{place:?} {slot}"))
    }

    fn write(&mut self, pool: &Pool, place: Place, slot: usize, row: Row) {
        let rows = pool.layout().rows(place.0);
        assert!(slot < rows);
        self.pages.entry(place).or_insert_with(|| vec![None; rows])[slot] = Some(row);
    }

    /// Copies a page as it is.
    pub fn copy(&mut self, class: PageClass, layer: usize, from: PageId, to: PageId) {
        // A sink page without sinks holds no rows.
        if let Some(page) = self.pages.get(&(class, layer, from)).cloned() {
            self.pages.insert((class, layer, to), page);
        }
    }

    /// Does what a step says; `id` names row `source` of the incoming tensors of a layer, and
    /// `kept` are the kept positions of each layer of the step.
    pub fn carry_out(
        &mut self,
        pool: &Pool,
        step: &Step,
        id: impl Fn(usize, u32) -> u64,
        kept: &[Vec<u32>],
    ) {
        use PageClass::{Packed, Raw, Sink};
        for (place, (layer, work)) in step.layers().enumerate() {
            for (class, copies) in [(Sink, &work.sink_copies), (Raw, &work.raw_copies)] {
                for copy in copies {
                    assert!(copies.iter().all(|other| other.from != copy.to), "read after write");
                    for slot in 0..copy.rows as usize {
                        let row = self.read((class, layer, copy.from), slot);
                        self.write(pool, (class, layer, copy.to), slot, row);
                    }
                }
            }
            for restore in &work.restores {
                for slot in 0..restore.rows as usize {
                    let row = self.read((Packed, layer, restore.from), slot);
                    let row = Row { packed: false, restored: row.restored + 1, ..row };
                    self.write(pool, (Raw, layer, restore.to), slot, row);
                }
            }
            for (class, writes) in [(Sink, &work.sink_writes), (Raw, &work.raw_writes)] {
                for write in writes {
                    for done in 0..write.rows {
                        let position = write.position + done;
                        assert!(write.source + done < step.source_rows());
                        let id = id(layer, write.source + done);
                        let row = Row { position, id, packed: false, restored: 0 };
                        let slot = (write.slot + done) as usize;
                        self.write(pool, (class, layer, write.page), slot, row);
                    }
                }
            }
            for gather in &work.gathers {
                for done in 0..gather.rows {
                    let position = kept[place][(gather.kept + done) as usize];
                    let behind = position as usize - pool.layout().sinks();
                    let chunk = pool.layout().chunk();
                    let from = work.gather_pages[gather.table as usize + behind / chunk];
                    let row = self.read((Raw, layer, from), behind % chunk);
                    assert_eq!(row.position, position);
                    self.write(pool, (Raw, layer, gather.to), done as usize, row);
                }
            }
            for encode in &work.encodes {
                for slot in 0..pool.layout().chunk() {
                    let row = self.read((Raw, layer, encode.from), slot);
                    let row = Row { packed: true, ..row };
                    self.write(pool, (Packed, layer, encode.to), slot, row);
                }
            }
        }
    }

    /// Forgets what nobody holds, so that reading it later fails.
    pub fn forget(&mut self, pool: &Pool) {
        self.pages.retain(|(class, layer, page), _| pool.owners(*class, *layer, *page) > 0);
    }

    /// The rows of one row of the tables of a batch in a layer.
    pub fn rows(&self, tables: &wgkv::cache::pool::Tables, layer: usize, row: usize) -> Vec<Row> {
        use PageClass::{Packed, Raw, Sink};
        let chunk = tables.chunk as usize;
        let mut rows = Vec::new();
        for slot in 0..tables.sink_rows[row] as usize {
            rows.push(self.read((Sink, layer, tables.sinks[row]), slot));
        }
        let span = |offsets: &[u32]| offsets[row] as usize..offsets[row + 1] as usize;
        for page in &tables.packed[span(&tables.packed_offsets)] {
            rows.extend((0..chunk).map(|slot| self.read((Packed, layer, *page), slot)));
        }
        let tail = &tables.tail[span(&tables.tail_offsets)];
        for at in 0..tables.tail_rows[row] as usize {
            rows.push(self.read((Raw, layer, tail[at / chunk]), at % chunk));
        }
        rows
    }
}

/// Checks that the pool, its tables and the memory say what the model says.
pub fn check(pool: &Pool, shape: &Shape, memory: &Memory, live: &[(SequenceId, Sequence)]) {
    check_account(pool, shape, live);
    for (id, model) in live {
        for layer in 0..shape.layers {
            let tables = pool.tables(&[*id], layer).unwrap();
            for head in 0..shape.heads {
                let expected = &model.heads[layer * shape.heads + head];
                assert_eq!(memory.rows(&tables, layer, head), expected.rows);
            }
        }
    }
}

/// Checks that the pool and its tables say what the model says.
pub fn check_account(pool: &Pool, shape: &Shape, live: &[(SequenceId, Sequence)]) {
    let mut names: HashMap<Place, *const u8> = HashMap::new();
    let mut pages: HashMap<*const u8, Place> = HashMap::new();
    for (id, model) in live {
        assert_eq!(pool.seen(*id).unwrap(), model.seen);
        let mut held = [0u64; 3];
        for layer in 0..shape.layers {
            assert_eq!(pool.is_finished(*id, layer).unwrap(), model.finished[layer]);
            let tables = pool.tables(&[*id], layer).unwrap();
            tables.check(pool, layer).unwrap();
            assert_eq!(tables.next, [model.seen]);
            for head in 0..shape.heads {
                let expected = &model.heads[layer * shape.heads + head];
                assert_eq!(tables.len(head) as usize, expected.rows.len());
                assert_eq!(pool.rows(*id, layer, head).unwrap() as usize, expected.rows.len());
                let frontier = pool.frontier(*id, layer, head).unwrap() as usize;
                assert_eq!(frontier, expected.packed.len() * shape.chunk);
                match pool.positions(*id, layer, head) {
                    Ok(positions) => {
                        let rows = expected.rows.iter().map(|row| row.position);
                        assert_eq!(positions, rows.collect::<Vec<_>>());
                    }
                    Err(error) => assert!(!model.told(layer, head), "{error}"),
                }
                let span = |o: &[u32]| o[head] as usize..o[head + 1] as usize;
                let sinks = expected.sink.iter().collect::<Vec<_>>();
                let sink: &[PageId] =
                    if tables.sinks[head].is_none() { &[] } else { &tables.sinks[head..=head] };
                let lists = [
                    (PageClass::Sink, sink, sinks),
                    (
                        PageClass::Packed,
                        &tables.packed[span(&tables.packed_offsets)],
                        expected.packed.iter().collect(),
                    ),
                    (
                        PageClass::Raw,
                        &tables.tail[span(&tables.tail_offsets)],
                        expected.tail.iter().collect(),
                    ),
                ];
                for (class, got, expected) in lists {
                    assert_eq!(got.len(), expected.len());
                    held[class.index()] += got.len() as u64;
                    for (page, model) in got.iter().zip(expected) {
                        let name = Rc::as_ptr(model);
                        let key = (class, layer, *page);
                        assert_eq!(*names.entry(key).or_insert(name), name);
                        assert_eq!(*pages.entry(name).or_insert(key), key);
                        assert_eq!(
                            pool.owners(class, layer, *page) as usize,
                            Rc::strong_count(model)
                        );
                    }
                }
            }
        }
        assert_eq!(pool.sequence_figures(*id).unwrap().pages, held);
    }
    check_bytes(pool, &pages);
}

fn check_bytes(pool: &Pool, pages: &HashMap<*const u8, Place>) {
    let figures = pool.figures();
    let of = |class| pages.values().filter(move |place| place.0 == class);
    let several = |class| of(class).filter(|place| pool.owners(place.0, place.1, place.2) > 1);
    assert_eq!(figures.pages, PageClass::ALL.map(|class| of(class).count() as u64));
    assert_eq!(figures.shared, PageClass::ALL.map(|class| several(class).count() as u64));
    let bytes: u64 = pages.values().map(|place| pool.layout().bytes(place.0)).sum();
    assert_eq!(figures.parts.total(), bytes);
    assert!(figures.allocated_bytes >= bytes);
    assert!(figures.allocated_bytes <= figures.budget_bytes);
    for (class, layer, page) in pages.values() {
        let layout = pool.layout();
        let slab = layout.slab_of(*class, *page);
        assert!(pool.slabs(*class, *layer).any(|number| number == slab));
        assert!(layout.index_of(*class, *page) < layout.pages_per_slab(*class));
    }
}
