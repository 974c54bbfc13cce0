// Where the values of a batch of tokens lie in workgroup memory while they are transformed, and the
// transform itself, without the factor 1 / sqrt(d) and with the sums of hadamard.wgsl in the same order.
// Head dimensions that are powers of two lie channel by channel of a piece of 8, with the pieces
// exchanged so that lanes that read or write at the same time meet in different banks; others lie as
// hadamard.wgsl wants them. Needs hadamard.wgsl, Piece (nearest.wgsl), PIECES and HEAD_DIM.

const TURN_PLAIN: u32 = select(0u, 1u, HADAMARD_ORDER == 1u);
// Pieces in hadamard_data.
const TURN_PLACES: u32 = HADAMARD_VALUES / 8u;
// Stages over the pieces of a token.
const TURN_LOG: u32 = select(0u, HADAMARD_RUN_LOG - min(3u, HADAMARD_RUN_LOG), HADAMARD_ORDER == 1u);
// From one channel of a piece to the next in a row of means.
const TURN_NEXT: u32 = select(1u, PIECES, HADAMARD_ORDER == 1u);

// Where a number of a piece lies, so that lanes that read one place of all tokens meet in no bank.
fn turn_slot(place: u32) -> u32 {
    if TURN_PLAIN == 1u {
        return place ^ ((place >> 5u) & (PIECES - 1u));
    }
    return place;
}

// Channel whose mean is number `i` of the row of means, and where that of a channel lies.
fn turn_channel_of(i: u32) -> u32 {
    if TURN_PLAIN == 1u {
        return ((i & (PIECES - 1u)) << 3u) | (i >> TURN_LOG);
    }
    return i;
}

fn turn_mean_at(channel: u32) -> u32 {
    if TURN_PLAIN == 1u {
        return ((channel & 7u) << TURN_LOG) | (channel >> 3u);
    }
    return channel;
}

// Where channel `e` of a piece lies.
fn turn_at(place: u32, e: u32) -> u32 {
    if TURN_PLAIN == 1u {
        return e * TURN_PLACES + (place ^ (e | ((place >> 2u) & 8u) | ((e & 1u) << 4u)));
    }
    return place * 8u + e;
}

fn turn_value_at(token: u32, channel: u32) -> u32 {
    return turn_at(token * PIECES + (channel >> 3u), channel & 7u);
}

fn turn_store(place: u32, piece: Piece) {
    hadamard_data[turn_at(place, 0u)] = piece.low.x;
    hadamard_data[turn_at(place, 1u)] = piece.low.y;
    hadamard_data[turn_at(place, 2u)] = piece.low.z;
    hadamard_data[turn_at(place, 3u)] = piece.low.w;
    hadamard_data[turn_at(place, 4u)] = piece.high.x;
    hadamard_data[turn_at(place, 5u)] = piece.high.y;
    hadamard_data[turn_at(place, 6u)] = piece.high.z;
    hadamard_data[turn_at(place, 7u)] = piece.high.w;
}

fn turn_load(place: u32) -> Piece {
    return Piece(
        vec4<f32>(
            hadamard_data[turn_at(place, 0u)],
            hadamard_data[turn_at(place, 1u)],
            hadamard_data[turn_at(place, 2u)],
            hadamard_data[turn_at(place, 3u)],
        ),
        vec4<f32>(
            hadamard_data[turn_at(place, 4u)],
            hadamard_data[turn_at(place, 5u)],
            hadamard_data[turn_at(place, 6u)],
            hadamard_data[turn_at(place, 7u)],
        ),
    );
}

// A channel's value with the sign that the seed says (src/nsnquant/hadamard.rs).
fn turn_signed(channel: u32, value: f32) -> f32 {
    if HADAMARD_SIGNED == 1u {
        return select(value, -value, hadamard_negative(channel));
    }
    return value;
}

fn turn_signed_four(channel: u32, v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        turn_signed(channel, v.x),
        turn_signed(channel + 1u, v.y),
        turn_signed(channel + 2u, v.z),
        turn_signed(channel + 3u, v.w),
    );
}

// Stores a piece after its share of the transform: the stages within it, where that comes first.
fn turn_store_first(place: u32, piece: Piece, channel: u32) {
    if TURN_PLAIN == 0u {
        turn_store(place, piece);
        return;
    }
    let low = hadamard_pairs(turn_signed_four(channel, piece.low));
    let high = hadamard_pairs(turn_signed_four(channel + 4u, piece.high));
    turn_store(place, Piece(low + high, low - high));
}

// Four values whose places lie `1 << log` apart.
fn turn_get(place: u32, log: u32, e: u32) -> vec4<f32> {
    return vec4<f32>(
        hadamard_data[turn_at(place, e)],
        hadamard_data[turn_at(place + (1u << log), e)],
        hadamard_data[turn_at(place + (2u << log), e)],
        hadamard_data[turn_at(place + (3u << log), e)],
    );
}

fn turn_put(place: u32, log: u32, e: u32, v: vec4<f32>) {
    hadamard_data[turn_at(place, e)] = v.x;
    hadamard_data[turn_at(place + (1u << log), e)] = v.y;
    hadamard_data[turn_at(place + (2u << log), e)] = v.z;
    hadamard_data[turn_at(place + (3u << log), e)] = v.w;
}

// Stages over pieces, all of them if there are at most four: a lane has one channel of up to 16 pieces.
fn turn_sixteen(group: u32) {
    let e = group & 7u;
    let place = hadamard_first(group >> 3u, 0u, 4u);
    let a = hadamard_pairs(turn_get(place, 0u, e));
    let b = hadamard_pairs(turn_get(place + 4u, 0u, e));
    let c = hadamard_pairs(turn_get(place + 8u, 0u, e));
    let d = hadamard_pairs(turn_get(place + 12u, 0u, e));
    let ab = a + b;
    let less = a - b;
    let cd = c + d;
    let fewer = c - d;
    turn_put(place, 0u, e, ab + cd);
    turn_put(place + 4u, 0u, e, less + fewer);
    turn_put(place + 8u, 0u, e, ab - cd);
    turn_put(place + 12u, 0u, e, less - fewer);
}

fn turn_eight(group: u32) {
    let e = group & 7u;
    let place = hadamard_first(group >> 3u, 0u, 3u);
    let a = hadamard_pairs(turn_get(place, 0u, e));
    let b = hadamard_pairs(turn_get(place + 4u, 0u, e));
    turn_put(place, 0u, e, a + b);
    turn_put(place + 4u, 0u, e, a - b);
}

fn turn_four(group: u32, log: u32) {
    let e = group & 7u;
    let place = hadamard_first(group >> 3u, log, 2u);
    turn_put(place, log, e, hadamard_pairs(turn_get(place, log, e)));
}

fn turn_two(group: u32, log: u32) {
    let e = group & 7u;
    let place = hadamard_first(group >> 3u, log, 1u);
    let low = hadamard_data[turn_at(place, e)];
    let high = hadamard_data[turn_at(place + (1u << log), e)];
    hadamard_data[turn_at(place, e)] = low + high;
    hadamard_data[turn_at(place + (1u << log), e)] = low - high;
}

// The rest of the transform of pieces that turn_store_first stored. To be called by the whole
// workgroup; what was written before is seen, and so is the result after.
fn turn_rest(lane: u32) {
    if TURN_PLAIN == 0u {
        hadamard_forward(lane);
        return;
    }
    workgroupBarrier();
    if TURN_LOG >= 4u {
        for (var group = lane; group < HADAMARD_VALUES / 16u; group += HADAMARD_LANES) {
            turn_sixteen(group);
        }
        workgroupBarrier();
    }
    if TURN_LOG == 3u {
        for (var group = lane; group < HADAMARD_VALUES / 8u; group += HADAMARD_LANES) {
            turn_eight(group);
        }
        workgroupBarrier();
    }
    if TURN_LOG == 2u || TURN_LOG == 6u {
        for (var group = lane; group < HADAMARD_VALUES / 4u; group += HADAMARD_LANES) {
            turn_four(group, TURN_LOG - min(2u, TURN_LOG));
        }
        workgroupBarrier();
    }
    if TURN_LOG == 1u || TURN_LOG == 5u {
        for (var group = lane; group < HADAMARD_VALUES / 2u; group += HADAMARD_LANES) {
            turn_two(group, TURN_LOG - min(1u, TURN_LOG));
        }
        workgroupBarrier();
    }
}
