// Units of rows that lie in pages of slabs, wherever those are. A unit is a few pages of one row;
// where they lie in more slabs than one dispatch binds, it is read in several runs, between which
// every lane keeps its state in `partials`. Needs attend.wgsl.
//
// Wants SLABS, 1 or 4: slabs that are bound; SPILL, whether there may be several runs; the binding
// lists: array<u32> and params.paged.

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
    // Where lanes keep their states, and the first unit that has one.
    spill_at: u32,
    spill_base: u32,
}

// row, first page, pages, rows before, slot, place among the states kept and how they are used.
const PAGED_WORDS: u32 = 6u;
const PAGED_RESUMES: u32 = 0x80000000u;
const PAGED_CONTINUES: u32 = 0x40000000u;
const PAGED_PLACE: u32 = 0x3fffffffu;
const PAGED_NO_SLAB: u32 = 4u;
// Numbers that a lane keeps: the run's and the means.
const PAGED_STATE: u32 = 72u;

struct PagedUnit {
    row: u32,
    first: u32,
    pages: u32,
    before: u32,
    slot: u32,
    spill: u32,
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
        lists[at + 5u], block, live);
}

// Page `number` of a unit; one that lies in no slab that is bound, or beyond its slab, is not held.
fn paged_page(unit: PagedUnit, number: u32) -> PagedPage {
    let id = lists[params.paged.pages_at + unit.first + number];
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

fn paged_resumes(unit: PagedUnit) -> bool {
    return SPILL != 0u && (unit.spill & PAGED_RESUMES) != 0u;
}

fn paged_continues(unit: PagedUnit) -> bool {
    return SPILL != 0u && (unit.spill & PAGED_CONTINUES) != 0u;
}

// Place of the first number that a lane keeps; the next follows SOFTMAX_LANES on.
fn paged_state(lane: u32, unit: PagedUnit) -> u32 {
    let kept = (unit.spill & PAGED_PLACE) - params.paged.spill_base;
    let workgroup_place = kept * params.attend.blocks + unit.block;
    return params.paged.spill_at + workgroup_place * (PAGED_STATE * SOFTMAX_LANES) + lane;
}

fn paged_keep_four(at: u32, value: vec4<f32>) {
    partials[at] = value.x;
    partials[at + SOFTMAX_LANES] = value.y;
    partials[at + 2u * SOFTMAX_LANES] = value.z;
    partials[at + 3u * SOFTMAX_LANES] = value.w;
}

fn paged_four(at: u32) -> vec4<f32> {
    return vec4<f32>(partials[at], partials[at + SOFTMAX_LANES],
        partials[at + 2u * SOFTMAX_LANES], partials[at + 3u * SOFTMAX_LANES]);
}

fn paged_keep_sums(at: u32, sums: AttendSums) {
    let step = 4u * SOFTMAX_LANES;
    paged_keep_four(at, sums.a);
    paged_keep_four(at + step, sums.b);
    paged_keep_four(at + 2u * step, sums.c);
    paged_keep_four(at + 3u * step, sums.d);
    paged_keep_four(at + 4u * step, sums.e);
    paged_keep_four(at + 5u * step, sums.f);
    paged_keep_four(at + 6u * step, sums.g);
    paged_keep_four(at + 7u * step, sums.h);
}

fn paged_sums(at: u32) -> AttendSums {
    let step = 4u * SOFTMAX_LANES;
    return AttendSums(paged_four(at), paged_four(at + step),
        paged_four(at + 2u * step), paged_four(at + 3u * step),
        paged_four(at + 4u * step), paged_four(at + 5u * step),
        paged_four(at + 6u * step), paged_four(at + 7u * step));
}

fn paged_keep_run(at: u32, run: AttendRun) {
    let step = 4u * SOFTMAX_LANES;
    paged_keep_four(at, run.top);
    paged_keep_four(at + step, run.weights);
    paged_keep_sums(at + 2u * step, run.sums);
}

fn paged_run(at: u32) -> AttendRun {
    let step = 4u * SOFTMAX_LANES;
    return AttendRun(paged_four(at), paged_four(at + step), paged_sums(at + 2u * step));
}

// Where the means are kept behind the run.
fn paged_means(at: u32) -> u32 {
    return at + 40u * SOFTMAX_LANES;
}
