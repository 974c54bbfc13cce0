//! Which pages are held, by how many, and which slabs there are.

use std::collections::HashSet;

use crate::layout::pool::{PageClass, PageId, PoolLayout};

/// The pages of one slab.
#[derive(Clone, Debug)]
struct Slab {
    /// Owners of each page.
    refs: Vec<u32>,
    /// A bit for each page that has no owner.
    free: Vec<u64>,
    used: u32,
}

impl Slab {
    fn new(pages: u32) -> Self {
        let mut free = vec![u64::MAX; pages.div_ceil(64) as usize];
        if let Some(last) = free.last_mut().filter(|_| !pages.is_multiple_of(64)) {
            *last = (1 << (pages % 64)) - 1;
        }
        Self { refs: vec![0; pages as usize], free, used: 0 }
    }

    fn is_full(&self) -> bool {
        self.used as usize == self.refs.len()
    }

    /// The first free page from `from` on.
    fn next_free(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let behind = u64::MAX << (from % 64);
        let masked = core::iter::once(self.free.get(first)? & behind);
        let words = masked.chain(self.free[first + 1..].iter().copied());
        words
            .enumerate()
            .find(|(_, word)| *word != 0)
            .map(|(place, word)| 64 * (first + place) as u32 + word.trailing_zeros())
    }
}

/// The pages of one class.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    class: PageClass,
    slabs: Vec<Option<Slab>>,
    used: u64,
    shared: u64,
}

impl Pages {
    pub(super) fn new(class: PageClass) -> Self {
        Self { class, slabs: Vec::new(), used: 0, shared: 0 }
    }

    /// Pages with an owner.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Pages with more than one owner.
    pub(super) fn shared(&self) -> u64 {
        self.shared
    }

    /// Numbers of the slabs that there are.
    pub(super) fn slabs(&self) -> impl Iterator<Item = u32> + '_ {
        self.slabs.iter().zip(0..).filter_map(|(slab, number)| slab.as_ref().map(|_| number))
    }

    /// Numbers of the slabs in which no page has an owner.
    pub(super) fn empty_slabs(&self) -> impl Iterator<Item = u32> + '_ {
        let empty = |slab: &Option<Slab>| slab.as_ref().is_some_and(|slab| slab.used == 0);
        self.slabs.iter().zip(0..).filter(move |(slab, _)| empty(slab)).map(|(_, number)| number)
    }

    /// Owners of a page.
    pub(super) fn refs(&self, layout: &PoolLayout, page: PageId) -> u32 {
        let slab = self.slabs.get(layout.slab_of(self.class, page) as usize);
        let slab = slab.and_then(Option::as_ref);
        let index = layout.index_of(self.class, page) as usize;
        slab.and_then(|slab| slab.refs.get(index)).copied().unwrap_or(0)
    }

    pub(super) fn add_slab(&mut self, layout: &PoolLayout, number: u32) {
        let number = number as usize;
        if self.slabs.len() <= number {
            self.slabs.resize_with(number + 1, || None);
        }
        self.slabs[number] = Some(Slab::new(layout.pages_per_slab(self.class)));
    }

    pub(super) fn drop_slab(&mut self, number: u32) {
        self.slabs[number as usize] = None;
        while self.slabs.last().is_some_and(Option::is_none) {
            self.slabs.pop();
        }
    }

    fn slab_mut(&mut self, layout: &PoolLayout, page: PageId) -> (&mut Slab, usize) {
        let slab = layout.slab_of(self.class, page) as usize;
        let slab = self.slabs[slab].as_mut().expect("a page in a table lies in a slab");
        (slab, layout.index_of(self.class, page) as usize)
    }

    /// Gives a free page its first owner.
    pub(super) fn take(&mut self, layout: &PoolLayout, page: PageId) {
        let (slab, index) = self.slab_mut(layout, page);
        debug_assert_eq!(slab.refs[index], 0, "{page:?} is free");
        slab.refs[index] = 1;
        slab.free[index / 64] &= !(1 << (index % 64));
        slab.used += 1;
        self.used += 1;
    }

    /// Gives a page one more owner.
    pub(super) fn share(&mut self, layout: &PoolLayout, page: PageId) {
        let (slab, index) = self.slab_mut(layout, page);
        debug_assert_ne!(slab.refs[index], 0, "{page:?} has an owner");
        slab.refs[index] += 1;
        let second = slab.refs[index] == 2;
        self.shared += u64::from(second);
    }

    /// Takes one owner away.
    pub(super) fn release(&mut self, layout: &PoolLayout, page: PageId) {
        let (slab, index) = self.slab_mut(layout, page);
        debug_assert_ne!(slab.refs[index], 0, "{page:?} has an owner");
        slab.refs[index] -= 1;
        match slab.refs[index] {
            0 => {
                slab.free[index / 64] |= 1 << (index % 64);
                slab.used -= 1;
                self.used -= 1;
            }
            1 => self.shared -= 1,
            _ => {}
        }
    }
}

/// Chooses free pages, lowest first, without taking them; beyond the slabs that there are it
/// chooses in new ones.
#[derive(Debug)]
pub(super) struct Picker<'a> {
    pages: &'a Pages,
    layout: &'a PoolLayout,
    slab: u32,
    index: u32,
    /// Slabs to be made.
    pub(super) opened: Vec<u32>,
    /// Pages chosen.
    pub(super) picked: Vec<PageId>,
    touched: HashSet<u32>,
}

impl<'a> Picker<'a> {
    pub(super) fn new(pages: &'a Pages, layout: &'a PoolLayout) -> Self {
        let (opened, picked, touched) = (Vec::new(), Vec::new(), HashSet::new());
        Self { pages, layout, slab: 0, index: 0, opened, picked, touched }
    }

    /// One more page; `None` when the pages of the class cannot be numbered any more.
    pub(super) fn pick(&mut self) -> Option<PageId> {
        let class = self.pages.class;
        let held = self.pages.slabs.len() as u32;
        while self.opened.is_empty() && self.slab < held {
            let slab = self.pages.slabs[self.slab as usize].as_ref();
            let slab = slab.filter(|slab| !slab.is_full());
            if let Some(index) = slab.and_then(|slab| slab.next_free(self.index)) {
                self.index = index + 1;
                return Some(self.found(self.slab, index));
            }
            self.slab += 1;
            self.index = 0;
        }
        if self.opened.is_empty() || self.index == self.layout.pages_per_slab(class) {
            let from = self.opened.last().map_or(0, |last| last + 1);
            let vacant =
                |number: &u32| self.pages.slabs.get(*number as usize).is_none_or(Option::is_none);
            let number = (from..self.layout.max_slabs(class)).find(vacant)?;
            self.opened.push(number);
            self.slab = number;
            self.index = 0;
        }
        self.index += 1;
        Some(self.found(self.slab, self.index - 1))
    }

    fn found(&mut self, slab: u32, index: u32) -> PageId {
        let page = self.layout.page(self.pages.class, slab, index);
        self.picked.push(page);
        self.touched.insert(slab);
        page
    }

    /// Whether a page of a slab has been chosen.
    pub(super) fn uses(&self, slab: u32) -> bool {
        self.touched.contains(&slab)
    }
}
