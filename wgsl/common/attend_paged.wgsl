// Units of rows that lie in pages of slabs, wherever those are. A unit is a few pages of one row.
// Needs attend.wgsl.
//
// Wants SLABS, 1 or 4: slabs that are bound; the binding lists: array<u32> and params.paged.

struct PagedParams {
    // Units of the dispatch and where in the lists they and the pages of the class lie.
    units: u32,
    units_at: u32,
    pages_at: u32,
    // How a page's number is taken apart, and pages of a slab.
    shift: u32,
    mask: u32,
    pages: u32,
    // Numbers of the slabs that are bound.
    slab_0: u32,
    slab_1: u32,
    slab_2: u32,
    slab_3: u32,
    _pad0: u32,
    _pad1: u32,
}

// row, first page, pages, rows before, slot.
const PAGED_WORDS: u32 = 5u;
const PAGED_NO_SLAB: u32 = 4u;

struct PagedUnit {
    row: u32,
    first: u32,
    pages: u32,
    before: u32,
    slot: u32,
    block: u32,
    live: bool,
}

struct PagedPage {
    slab: u32,
    index: u32,
    held: bool,
}

fn paged_unit(place: u32) -> PagedUnit {
    let number = divide_magic(place, params.attend.blocks_multiplier,
        params.attend.blocks_shift1, params.attend.blocks_shift2);
    let block = place - number * params.attend.blocks;
    let live = number < params.paged.units;
    let at = params.paged.units_at + PAGED_WORDS * min(number, params.paged.units - 1u);
    let pages = select(0u, lists[at + 2u], live);
    return PagedUnit(lists[at], lists[at + 1u], pages, lists[at + 3u], lists[at + 4u],
        block, live);
}

// Page `number` of a unit; one that lies in no slab that is bound, or beyond its slab, is not held.
fn paged_page(unit: PagedUnit, number: u32) -> PagedPage {
    return paged_held(lists[params.paged.pages_at + unit.first + number]);
}

fn paged_held(id: u32) -> PagedPage {
    let slab = id >> params.paged.shift;
    let index = id & params.paged.mask;
    var bound = select(PAGED_NO_SLAB, 0u, slab == params.paged.slab_0);
    if SLABS > 1u {
        bound = select(bound, 1u, slab == params.paged.slab_1);
        bound = select(bound, 2u, slab == params.paged.slab_2);
        bound = select(bound, 3u, slab == params.paged.slab_3);
    }
    let held = bound < PAGED_NO_SLAB && index < params.paged.pages;
    return PagedPage(select(0u, bound, held), select(0u, index, held), held);
}
