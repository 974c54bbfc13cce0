// A packed page, read as it lies: tiles of tokens, first a lane is a token, then a lane is a piece
// of every `groups`-th token. Needs element.wgsl, page.wgsl and attend.wgsl.
//
// Wants params.packed, packed_key and packed_value (page, word) -> u32 for a word of the page's keys
// or values, packed_position (page, token) -> u32, `page` being what they find the page by, and
// packed_key_row, packed_value_row (row) -> vec4<f32>, centroid i being rows 2i and 2i + 1.

struct PackedParams {
    chunk: u32,
    norm_k: f32,
    norm_v: f32,
    key_bits: u32,
    value_bits: u32,
    key_sign: u32,
    key_s1: u32,
    key_s2: u32,
    key_o: u32,
    value_sign: u32,
    value_s1: u32,
    value_s2: u32,
    value_o: u32,
    // Words from one page's keys, values and positions to the next's, where those of the first page
    // lie, and where the books of keys and values start.
    key_words: u32,
    value_words: u32,
    position_words: u32,
    values_at: u32,
    positions_at: u32,
    key_book: u32,
    value_book: u32,
}

const PACKED_MIN_NORM: f32 = 1e-8;

var<workgroup> packed_key_square: array<f32, 256>;
var<workgroup> packed_value_square: array<f32, 256>;

// Where keys, values and positions of page `index` lie.
fn packed_at(index: u32) -> vec4<u32> {
    return vec4<u32>(
        index * params.packed.key_words,
        index * params.packed.value_words + params.packed.values_at,
        index * params.packed.position_words + params.packed.positions_at,
        0u,
    );
}

fn packed_square(low: vec4<f32>, high: vec4<f32>) -> f32 {
    let a = low * low;
    let b = high * high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// Squared norms of the centroids. A barrier must follow.
fn packed_squares(lane: u32) {
    for (var i = lane; i < 256u; i += SOFTMAX_LANES) {
        packed_key_square[i] = packed_square(packed_key_row(2u * i), packed_key_row(2u * i + 1u));
        packed_value_square[i] =
            packed_square(packed_value_row(2u * i), packed_value_row(2u * i + 1u));
    }
}

fn packed_dot_piece(index: u32, signs: u32, c: u32) -> vec4<f32> {
    let low = page_signed(packed_key_row(2u * index), signs);
    let high = page_signed(packed_key_row(2u * index + 1u), signs >> 4u);
    return attend_dot(c, AttendPiece(low, high));
}

// Dot products of the rotated queries with the centroids of a token, brought to norm sqrt(d).
fn packed_dot(page: vec4<u32>, token: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    var square = 0.0;
    // A head dimension that is a multiple of 32 has whole words of codes in a token.
    if (ATTEND_PIECES & 3u) == 0u {
        for (var piece = 0u; piece < ATTEND_PIECES; piece += 4u) {
            let word = (token * ATTEND_PIECES + piece) >> 2u;
            let indices = packed_key(page, word);
            var signs = 0xffffffffu;
            if params.packed.key_bits == 2u {
                signs = packed_key(page, word + params.packed.key_sign);
            }
            let c = piece * 8u;
            sum += packed_dot_piece(indices & 0xffu, signs, c);
            sum += packed_dot_piece((indices >> 8u) & 0xffu, signs >> 8u, c + 8u);
            sum += packed_dot_piece((indices >> 16u) & 0xffu, signs >> 16u, c + 16u);
            sum += packed_dot_piece(indices >> 24u, signs >> 24u, c + 24u);
            square += packed_key_square[indices & 0xffu];
            square += packed_key_square[(indices >> 8u) & 0xffu];
            square += packed_key_square[(indices >> 16u) & 0xffu];
            square += packed_key_square[indices >> 24u];
        }
    } else {
        for (var piece = 0u; piece < ATTEND_PIECES; piece++) {
            let byte = token * ATTEND_PIECES + piece;
            let index = page_byte(packed_key(page, byte >> 2u), byte);
            var signs = 0xffu;
            if params.packed.key_bits == 2u {
                signs = page_byte(packed_key(page, (byte >> 2u) + params.packed.key_sign), byte);
            }
            sum += packed_dot_piece(index, signs, piece * 8u);
            square += packed_key_square[index];
        }
    }
    return sum * (params.packed.norm_k / max(sqrt(square), PACKED_MIN_NORM));
}

// What brings the centroids of a value to norm sqrt(d).
fn packed_gain(page: vec4<u32>, token: u32) -> f32 {
    let pieces = params.attend.pieces_v;
    var square = 0.0;
    if (pieces & 3u) == 0u {
        for (var piece = 0u; piece < pieces; piece += 4u) {
            let indices = packed_value(page, (token * pieces + piece) >> 2u);
            square += packed_value_square[indices & 0xffu];
            square += packed_value_square[(indices >> 8u) & 0xffu];
            square += packed_value_square[(indices >> 16u) & 0xffu];
            square += packed_value_square[indices >> 24u];
        }
    } else {
        for (var piece = 0u; piece < pieces; piece++) {
            let byte = token * pieces + piece;
            square += packed_value_square[page_byte(packed_value(page, byte >> 2u), byte)];
        }
    }
    return params.packed.norm_v / max(sqrt(square), PACKED_MIN_NORM);
}

fn packed_piece(page: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    let byte = token * params.attend.pieces_v + piece;
    let index = page_byte(packed_value(page, byte >> 2u), byte);
    let low = packed_value_row(2u * index);
    let high = packed_value_row(2u * index + 1u);
    if params.packed.value_bits == 1u {
        return AttendPiece(low, high);
    }
    let signs = page_byte(packed_value(page, (byte >> 2u) + params.packed.value_sign), byte);
    return AttendPiece(page_signed(low, signs), page_signed(high, signs >> 4u));
}

fn packed_mean(page: vec4<u32>, channel: u32) -> f32 {
    return page_real(packed_value(page, params.packed.value_o + (channel >> 1u)), channel);
}

fn packed_means(page: vec4<u32>, c: u32) -> AttendPiece {
    return AttendPiece(
        vec4<f32>(packed_mean(page, c), packed_mean(page, c + 1u),
            packed_mean(page, c + 2u), packed_mean(page, c + 3u)),
        vec4<f32>(packed_mean(page, c + 4u), packed_mean(page, c + 5u),
            packed_mean(page, c + 6u), packed_mean(page, c + 7u)),
    );
}

// Takes in a page. `means` are the sums of the pages' means; those of the centroids are the run's.
fn packed_page(
    own: AttendLane,
    page: vec4<u32>,
    block: AttendBlock,
    run: ptr<function, AttendRun>,
    means: ptr<function, AttendSums>,
) {
    let plan = params.packed;
    let tokens = plan.chunk;
    var part = vec4<f32>(0.0);
    for (var c = own.lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        let mean = page_real(packed_key(page, plan.key_o + (c >> 1u)), c);
        part += attend_real(block.query, c) * mean;
    }
    let shared_dot = softmax_sum(own.lane, part);
    for (var tile = 0u; tile < tokens; tile += SOFTMAX_LANES) {
        let token = tile + own.lane;
        var logit = vec4<f32>(SOFTMAX_UNSEEN);
        var seen = vec4<bool>(false);
        var s1 = 0.0;
        var s2 = 0.0;
        if token < tokens {
            var position = 0u;
            if params.attend.causal != 0u {
                position = packed_position(page, token);
            }
            seen = attend_seen(block, position);
            let half = token >> 1u;
            let key_s2 = page_real(packed_key(page, plan.key_s2 + half), token);
            let inner = key_s2 * packed_dot(page, token) + shared_dot;
            let dot = page_scale(packed_key(page, plan.key_s1 + half), token) * inner;
            logit = select(logit, attend_logit(block, dot), seen);
            s1 = page_scale(packed_value(page, plan.value_s1 + half), token);
            s2 = page_real(packed_value(page, plan.value_s2 + half), token)
                * packed_gain(page, token);
        }
        let step = attend_weigh(own.lane, logit, seen, run);
        let scaled = step.weight * s1;
        attend_weight[own.lane] = scaled * s2;
        // The barriers of the sum also show the weights to all.
        let share = softmax_sum(own.lane, scaled);
        if own.owns {
            let count = min(tokens - tile, SOFTMAX_LANES);
            var sums = (*run).sums;
            let groups = params.attend.groups;
            var t = own.group;
            for (; t + groups < count; t += 2u * groups) {
                let a = packed_piece(page, tile + t, own.piece);
                let b = packed_piece(page, tile + t + groups, own.piece);
                sums = attend_add(sums, attend_weight[t], a);
                sums = attend_add(sums, attend_weight[t + groups], b);
            }
            if t < count {
                sums = attend_add(sums, attend_weight[t], packed_piece(page, tile + t, own.piece));
            }
            (*run).sums = sums;
        }
        if own.group == 0u {
            let shrunk = attend_shrink(*means, step.shrink);
            *means = attend_add(shrunk, share, packed_means(page, 8u * own.piece));
        }
    }
}

fn packed_finish(own: AttendLane, place: vec4<u32>, run: AttendRun, means: AttendSums) {
    attend_finish(own, place, params.attend.head_dim_v + 2u, run);
    if own.group == 0u {
        attend_store_sums(place, 8u * own.piece, means);
    }
}
