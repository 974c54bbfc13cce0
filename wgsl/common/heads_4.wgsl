// What a workgroup answers together: four queries of one row, one a component. Its siblings take two
// or one. Needs the bindings prepared: array<u32> and partials: array<f32>, and HEAD_DIM; and
// HEADS_PARTS, how many parts of the queries are shown.

alias Integer = vec4<i32>;
alias Real = vec4<f32>;
alias Whole = vec4<u32>;
alias Flag = vec4<bool>;

const HEADS: u32 = 4u;
const HEADS_NOWHERE: u32 = 0xffffffffu;
const HEADS_FOURS: u32 = HEAD_DIM;

// Four channels of the queries.
struct HeadsQuery {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

var<workgroup> heads_shown: array<vec4<f32>, HEADS_PARTS * HEADS_FOURS>;

fn heads_numbers() -> Whole {
    return vec4<u32>(0u, 1u, 2u, 3u);
}

fn heads_any(flag: Flag) -> bool {
    return any(flag);
}

fn heads_prepared(at: Whole) -> Whole {
    return vec4<u32>(prepared[at.x], prepared[at.y], prepared[at.z], prepared[at.w]);
}

// What stands at place `i` of heads_shown, the queries starting at these words.
fn heads_four(first: Whole, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(heads_prepared(first + i));
}

// The queries shown, channels `c` to `c + 3`, `c` being a multiple of 4.
fn heads_query(c: u32) -> HeadsQuery {
    return HeadsQuery(heads_shown[c], heads_shown[c + 1u], heads_shown[c + 2u], heads_shown[c + 3u]);
}

// Four channels of the queries that start at these words.
fn heads_given(first: Whole, c: u32) -> HeadsQuery {
    return HeadsQuery(heads_four(first, c), heads_four(first, c + 1u), heads_four(first, c + 2u),
        heads_four(first, c + 3u));
}

fn heads_dot(start: Real, query: HeadsQuery, row: vec4<f32>) -> Real {
    var sum = start + query.a * row.x;
    sum += query.b * row.y;
    sum += query.c * row.z;
    return sum + query.d * row.w;
}

// Products of four bytes of the queries with four others, added up.
fn heads_dot_bytes(start: Integer, query: Whole, word: u32) -> Integer {
    return start + vec4<i32>(
        dot4I8Packed(query.x, word), dot4I8Packed(query.y, word),
        dot4I8Packed(query.z, word), dot4I8Packed(query.w, word));
}

fn heads_store(place: Whole, channel: u32, value: Real) {
    if place.x != HEADS_NOWHERE {
        partials[place.x + channel] = value.x;
    }
    if place.y != HEADS_NOWHERE {
        partials[place.y + channel] = value.y;
    }
    if place.z != HEADS_NOWHERE {
        partials[place.z + channel] = value.z;
    }
    if place.w != HEADS_NOWHERE {
        partials[place.w + channel] = value.w;
    }
}
