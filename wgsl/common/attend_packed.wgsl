// A packed page, read as it lies: tiles of tokens, first a lane is a token, then a lane is a piece
// of every `groups`-th token. Needs attend.wgsl and attend_page.wgsl.
//
// Wants packed_position (page, token) -> u32, and packed_key_row, packed_value_row (row) ->
// vec4<f32>, four numbers of the books of keys and values.

const HEADS_PARTS: u32 = 1u;
const PACKED_MIN_NORM: f32 = 1e-8;

var<workgroup> attend_weight: array<Real, SOFTMAX_LANES>;
var<workgroup> packed_key_square: array<f32, 256>;
var<workgroup> packed_value_square: array<f32, 256>;

fn packed_square(low: vec4<f32>, high: vec4<f32>) -> f32 {
    let a = low * low;
    let b = high * high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// Squared norms of the centroids. A barrier must follow.
fn packed_squares(lane: u32) {
    for (var i = lane; i < 256u; i += SOFTMAX_LANES) {
        if params.packed.key_width == 8u {
            packed_key_square[i] =
                packed_square(packed_key_row(2u * i), packed_key_row(2u * i + 1u));
        }
        if params.packed.value_width == 8u {
            packed_value_square[i] =
                packed_square(packed_value_row(2u * i), packed_value_row(2u * i + 1u));
        }
    }
}

// Bytes of the indices of 8 channels.
fn packed_bytes(width: u32, form: u32) -> u32 {
    let two = select(4u, 3u, packed_has(form, PACKED_SIX));
    return select(select(two, 2u, width == 4u), 1u, width == 8u);
}

// The indices of piece `piece` of a page's keys, lowest bits first.
fn packed_key_code(page: vec4<u32>, piece: u32, bytes: u32) -> u32 {
    let byte = piece * bytes;
    let shift = (byte & 3u) * 8u;
    var code = packed_key(page, byte >> 2u) >> shift;
    // Only indices of three bytes can lie in two words.
    if shift + 8u * bytes > 32u {
        code |= packed_key(page, (byte >> 2u) + 1u) << (32u - shift);
    }
    return code & (0xffffffffu >> (32u - 8u * bytes));
}

fn packed_value_code(page: vec4<u32>, piece: u32, bytes: u32) -> u32 {
    let byte = piece * bytes;
    let shift = (byte & 3u) * 8u;
    var code = packed_value(page, byte >> 2u) >> shift;
    if shift + 8u * bytes > 32u {
        code |= packed_value(page, (byte >> 2u) + 1u) << (32u - shift);
    }
    return code & (0xffffffffu >> (32u - 8u * bytes));
}

fn packed_key_pair(index: u32) -> vec2<f32> {
    let pair = packed_key_row(index >> 1u);
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

fn packed_value_pair(index: u32) -> vec2<f32> {
    let pair = packed_value_row(index >> 1u);
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

// Indices of the four centroids of 2 channels that a code holds.
fn packed_four(code: u32, form: u32) -> vec4<u32> {
    let bits = select(8u, 6u, packed_has(form, PACKED_SIX));
    let mask = (1u << bits) - 1u;
    return vec4<u32>(code, code >> bits, code >> (2u * bits), code >> (3u * bits)) & vec4<u32>(mask);
}

// The centroids that a code of keys stands for; not for centroids of 8 channels.
fn packed_key_piece(code: u32) -> AttendPiece {
    if params.packed.key_width == 4u {
        return AttendPiece(packed_key_row(code & 0xffu), packed_key_row(code >> 8u));
    }
    let four = packed_four(code, params.packed.key_form);
    return AttendPiece(
        vec4<f32>(packed_key_pair(four.x), packed_key_pair(four.y)),
        vec4<f32>(packed_key_pair(four.z), packed_key_pair(four.w)),
    );
}

fn packed_value_piece(code: u32) -> AttendPiece {
    if params.packed.value_width == 4u {
        return AttendPiece(packed_value_row(code & 0xffu), packed_value_row(code >> 8u));
    }
    let four = packed_four(code, params.packed.value_form);
    return AttendPiece(
        vec4<f32>(packed_value_pair(four.x), packed_value_pair(four.y)),
        vec4<f32>(packed_value_pair(four.z), packed_value_pair(four.w)),
    );
}

fn packed_dot_piece(index: u32, signs: u32, c: u32) -> vec4<f32> {
    let low = page_signed(packed_key_row(2u * index), signs);
    let high = page_signed(packed_key_row(2u * index + 1u), signs >> 4u);
    return attend_dot(c, AttendPiece(low, high));
}

// What the centroids of a token still need, their squared norm being `square`.
fn packed_norm(form: u32, norm: f32, square: f32) -> f32 {
    return select(1.0, norm / max(sqrt(square), PACKED_MIN_NORM), packed_has(form, PACKED_NORMED));
}

// Dot products of the rotated queries with the centroids of a token.
fn packed_dot(page: vec4<u32>, token: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    var square = 0.0;
    let form = params.packed.key_form;
    let signed = packed_has(form, PACKED_SIGNS);
    if params.packed.key_width != 8u {
        let bytes = packed_bytes(params.packed.key_width, form);
        for (var piece = 0u; piece < ATTEND_PIECES; piece++) {
            let code = packed_key_code(page, token * ATTEND_PIECES + piece, bytes);
            let centroids = packed_key_piece(code);
            sum += attend_dot(piece * 8u, centroids);
            square += packed_square(centroids.low, centroids.high);
        }
        return sum * packed_norm(form, params.packed.norm_k, square);
    }
    // A head dimension that is a multiple of 32 has whole words of codes in a token.
    if (ATTEND_PIECES & 3u) == 0u {
        for (var piece = 0u; piece < ATTEND_PIECES; piece += 4u) {
            let word = (token * ATTEND_PIECES + piece) >> 2u;
            let indices = packed_key(page, word);
            var signs = 0xffffffffu;
            if signed {
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
            if signed {
                signs = page_byte(packed_key(page, (byte >> 2u) + params.packed.key_sign), byte);
            }
            sum += packed_dot_piece(index, signs, piece * 8u);
            square += packed_key_square[index];
        }
    }
    return sum * packed_norm(form, params.packed.norm_k, square);
}

// What the centroids of a value still need.
fn packed_gain(page: vec4<u32>, token: u32) -> f32 {
    let pieces = params.attend.pieces_v;
    let form = params.packed.value_form;
    var square = 0.0;
    if !packed_has(form, PACKED_NORMED) {
        return 1.0;
    }
    if params.packed.value_width != 8u {
        for (var piece = 0u; piece < pieces; piece++) {
            let centroids = packed_piece(page, token, piece);
            square += packed_square(centroids.low, centroids.high);
        }
        return packed_norm(form, params.packed.norm_v, square);
    }
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
    return packed_norm(form, params.packed.norm_v, square);
}

fn packed_piece(page: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    let form = params.packed.value_form;
    let number = token * params.attend.pieces_v + piece;
    if params.packed.value_width != 8u {
        let bytes = packed_bytes(params.packed.value_width, form);
        return packed_value_piece(packed_value_code(page, number, bytes));
    }
    let index = page_byte(packed_value(page, number >> 2u), number);
    let low = packed_value_row(2u * index);
    let high = packed_value_row(2u * index + 1u);
    if !packed_has(form, PACKED_SIGNS) {
        return AttendPiece(low, high);
    }
    let signs = page_byte(packed_value(page, (number >> 2u) + params.packed.value_sign), number);
    return AttendPiece(page_signed(low, signs), page_signed(high, signs >> 4u));
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
    let mean_start = packed_mean_start(own, page, block);
    for (var tile = 0u; tile < tokens; tile += SOFTMAX_LANES) {
        let token = tile + own.lane;
        var logit = vec4<f32>(SOFTMAX_UNSEEN);
        var seen = vec4<bool>(false);
        var s1 = 0.0;
        var s2 = 0.0;
        let mean_dot = packed_mean_dot(own, page, block, token, mean_start);
        if token < tokens {
            var position = 0u;
            if params.attend.causal != 0u {
                position = packed_position(page, token);
            }
            seen = attend_seen(block, position);
            let key = packed_key_scales(page, token);
            let dot = key.x * (key.y * packed_dot(page, token) + mean_dot);
            logit = select(logit, attend_logit(block, dot), seen);
            let value = packed_value_scales(page, token);
            s1 = value.x;
            s2 = value.y * packed_gain(page, token);
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
    var whole = run;
    var plain = means;
    // Means in the Hadamard domain go where the centroids go.
    if packed_has(params.packed.value_form, PACKED_TURNED) {
        if own.group == 0u {
            whole.sums = attend_join(run.sums, means);
        }
        plain = attend_zero();
    }
    attend_finish(own, place, params.attend.head_dim_v + 2u, whole);
    if own.group == 0u {
        attend_store_sums(place, 8u * own.piece, plain);
    }
}

fn packed_key_form() -> u32 {
    return params.packed.key_form;
}

fn packed_value_form() -> u32 {
    return params.packed.value_form;
}
