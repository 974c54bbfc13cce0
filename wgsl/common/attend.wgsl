// What the attention kernels have in common: a block of a few queries of one row, as many as
// heads_4.wgsl or a sibling says; which keys they see; their running softmax; the partial result that
// comes of it.
//
// Wants HEAD_DIM, SOFTMAX_LANES (64, 128 or 256), heads_4.wgsl or a sibling, softmax.wgsl, divide.wgsl
// and params.attend.

struct AttendParams {
    // Queries of a row; those that this dispatch answers, and how many.
    per_row: u32,
    queries_first: u32,
    queries_end: u32,
    span: u32,
    // Numbers of a partial result, and the first one's place among all.
    stride: u32,
    slot_base: u32,
    head_dim_v: u32,
    // Pieces of 8 channels of a value (of 16 with plain books), and how many tokens the lanes take at
    // once.
    pieces_v: u32,
    groups: u32,
    pieces_multiplier: u32,
    pieces_shift1: u32,
    pieces_shift2: u32,
    causal: u32,
    window: u32,
    cap: f32,
    cap_inverse: f32,
    blocks: u32,
    blocks_multiplier: u32,
    blocks_shift1: u32,
    blocks_shift2: u32,
}

// Of each query: q' [d], H q' [d], limit, factor, power, last position that it sees.
const ATTEND_STRIDE: u32 = 2u * HEAD_DIM + 4u;
const ATTEND_PIECES: u32 = HEAD_DIM / 8u;

struct AttendBlock {
    query: Whole,
    // Place of each query's partial result in slot 0 of the dispatch.
    place: Whole,
    limit: Real,
    factor: Real,
    boost: Whole,
    // Positions seen: from low to high, none where low is above high.
    low: Whole,
    high: Whole,
}

// Eight channels of a key or a value.
struct AttendPiece {
    low: vec4<f32>,
    high: vec4<f32>,
}

// Sums of weighted channels of one piece.
struct AttendSums {
    a: Real,
    b: Real,
    c: Real,
    d: Real,
    e: Real,
    f: Real,
    g: Real,
    h: Real,
}

struct AttendRun {
    // Largest logit, the same in every lane, and the sum of the weights of this lane's tokens.
    top: Real,
    weights: Real,
    sums: AttendSums,
}

// What a tile does to the run before its values are added.
struct AttendStep {
    weight: Real,
    shrink: Real,
}

// A lane's part of the values: tokens group, group + groups, ... of a tile, channels of one piece.
struct AttendLane {
    lane: u32,
    group: u32,
    piece: u32,
    owns: bool,
}

fn attend_word(query: Whole, part: u32) -> Whole {
    return heads_prepared(query * ATTEND_STRIDE + Whole(part));
}

fn attend_real(query: Whole, part: u32) -> Real {
    return bitcast<Real>(attend_word(query, part));
}

// Block number `block` of the dispatch's queries of a row; none of them where it is not live.
fn attend_block(row: u32, block: u32, live: bool) -> AttendBlock {
    let number = Whole(params.attend.queries_first + HEADS * block) + heads_numbers();
    let wanted = (number < Whole(params.attend.queries_end)) & Flag(live);
    let own = min(number, Whole(params.attend.per_row - 1u));
    let place = (number - params.attend.queries_first) * params.attend.stride;
    var block_of: AttendBlock;
    block_of.query = Whole(row * params.attend.per_row) + own;
    block_of.place = select(Whole(HEADS_NOWHERE), place, wanted);
    block_of.limit = attend_real(block_of.query, 2u * HEAD_DIM);
    block_of.factor = attend_real(block_of.query, 2u * HEAD_DIM + 1u);
    block_of.boost = attend_word(block_of.query, 2u * HEAD_DIM + 2u);
    let high = attend_word(block_of.query, 2u * HEAD_DIM + 3u);
    let narrow = (high >= Whole(params.attend.window)) & Flag(params.attend.causal != 0u);
    let low = select(Whole(0u), high - params.attend.window + 1u, narrow);
    block_of.low = select(Whole(1u), low, wanted);
    block_of.high = select(Whole(0u), high, wanted);
    return block_of;
}

// Puts part `part` of the queries, 0 or HEAD_DIM, before the workgroup. A barrier must follow.
fn attend_show(lane: u32, query: Whole, part: u32) {
    let first = query * ATTEND_STRIDE + Whole(part);
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[i] = heads_four(first, i);
    }
}

fn attend_lane(lane: u32) -> AttendLane {
    let group = divide_magic(lane, params.attend.pieces_multiplier,
        params.attend.pieces_shift1, params.attend.pieces_shift2);
    let piece = lane - group * params.attend.pieces_v;
    return AttendLane(lane, group, piece, group < params.attend.groups);
}

// Whether any query of the block may see positions from `first` to `last`.
fn attend_reaches(block: AttendBlock, first: u32, last: u32) -> bool {
    let apart = (Whole(last) < block.low) | (Whole(first) > block.high);
    let none = block.low > block.high;
    return heads_any(!(apart | none));
}

fn attend_seen(block: AttendBlock, position: u32) -> Flag {
    return (Whole(position) >= block.low) & (Whole(position) <= block.high);
}

// Dot products of the queries shown, from channel `c` on, with a piece.
fn attend_dot(c: u32, piece: AttendPiece) -> Real {
    let low = heads_dot(Real(0.0), heads_query(c), piece.low);
    return heads_dot(low, heads_query(c + 4u), piece.high);
}

fn attend_logit(block: AttendBlock, dot: Real) -> Real {
    let logit = softmax_logit(dot, block.limit, block.factor, block.boost);
    if params.attend.cap > 0.0 {
        return softmax_cap(logit, params.attend.cap, params.attend.cap_inverse);
    }
    return logit;
}

fn attend_start() -> AttendRun {
    var run: AttendRun;
    run.top = Real(SOFTMAX_UNSEEN);
    run.weights = Real(0.0);
    run.sums = attend_zero();
    return run;
}

fn attend_zero() -> AttendSums {
    let zero = Real(0.0);
    return AttendSums(zero, zero, zero, zero, zero, zero, zero, zero);
}

fn attend_shrink(sums: AttendSums, by: Real) -> AttendSums {
    return AttendSums(sums.a * by, sums.b * by, sums.c * by, sums.d * by,
        sums.e * by, sums.f * by, sums.g * by, sums.h * by);
}

fn attend_join(a: AttendSums, b: AttendSums) -> AttendSums {
    return AttendSums(
        a.a + b.a, a.b + b.b, a.c + b.c, a.d + b.d, a.e + b.e, a.f + b.f, a.g + b.g, a.h + b.h);
}

fn attend_add(sums: AttendSums, weight: Real, piece: AttendPiece) -> AttendSums {
    return AttendSums(
        sums.a + weight * piece.low.x,
        sums.b + weight * piece.low.y,
        sums.c + weight * piece.low.z,
        sums.d + weight * piece.low.w,
        sums.e + weight * piece.high.x,
        sums.f + weight * piece.high.y,
        sums.g + weight * piece.high.z,
        sums.h + weight * piece.high.w,
    );
}

// Takes in a tile, one token a lane.
fn attend_weigh(
    lane: u32,
    logit: Real,
    seen: Flag,
    run: ptr<function, AttendRun>,
) -> AttendStep {
    let top = max((*run).top, softmax_max(lane, logit));
    let shrink = softmax_power((*run).top - top);
    let power = softmax_power(logit - top);
    let weight = select(Real(0.0), power * SOFTMAX_FACTOR, seen);
    (*run).top = top;
    (*run).weights = (*run).weights * shrink + weight;
    (*run).sums = attend_shrink((*run).sums, shrink);
    return AttendStep(weight, shrink);
}

fn attend_store_sums(place: Whole, c: u32, sums: AttendSums) {
    heads_store(place, c, sums.a);
    heads_store(place, c + 1u, sums.b);
    heads_store(place, c + 2u, sums.c);
    heads_store(place, c + 3u, sums.d);
    heads_store(place, c + 4u, sums.e);
    heads_store(place, c + 5u, sums.f);
    heads_store(place, c + 6u, sums.g);
    heads_store(place, c + 7u, sums.h);
}

// Places of the queries' partial results in a slot.
fn attend_place(block: AttendBlock, slot: u32) -> Whole {
    let first = (slot - params.attend.slot_base) * params.attend.span * params.attend.stride;
    return select(
        Whole(first) + block.place, block.place, block.place == Whole(HEADS_NOWHERE));
}

// Writes the run's sums, from number `at` of the partial result on, its largest logit and the sum
// of its weights.
fn attend_finish(own: AttendLane, place: Whole, at: u32, run: AttendRun) {
    let total = softmax_sum(own.lane, run.weights);
    let count = params.attend.pieces_v;
    let groups = params.attend.groups;
    let sums = AttendSums(
        softmax_groups(own.lane, run.sums.a, count, groups),
        softmax_groups(own.lane, run.sums.b, count, groups),
        softmax_groups(own.lane, run.sums.c, count, groups),
        softmax_groups(own.lane, run.sums.d, count, groups),
        softmax_groups(own.lane, run.sums.e, count, groups),
        softmax_groups(own.lane, run.sums.f, count, groups),
        softmax_groups(own.lane, run.sums.g, count, groups),
        softmax_groups(own.lane, run.sums.h, count, groups),
    );
    if own.group == 0u {
        attend_store_sums(place, at + 8u * own.piece, sums);
    }
    if own.lane == 0u {
        heads_store(place, params.attend.head_dim_v, run.top);
        heads_store(place, params.attend.head_dim_v + 1u, total);
    }
}
