// What a workgroup answers together: two queries of one row. See heads_4.wgsl.

alias Integer = vec2<i32>;
alias Real = vec2<f32>;
alias Whole = vec2<u32>;
alias Flag = vec2<bool>;

const HEADS: u32 = 2u;
const HEADS_NOWHERE: u32 = 0xffffffffu;
const HEADS_FOURS: u32 = HEAD_DIM / 2u;

// Four channels of the queries, two a part.
struct HeadsQuery {
    a: vec4<f32>,
    b: vec4<f32>,
}

var<workgroup> heads_shown: array<vec4<f32>, HEADS_PARTS * HEADS_FOURS>;

fn heads_numbers() -> Whole {
    return vec2<u32>(0u, 1u);
}

fn heads_any(flag: Flag) -> bool {
    return any(flag);
}

fn heads_prepared(at: Whole) -> Whole {
    return vec2<u32>(prepared[at.x], prepared[at.y]);
}

fn heads_four(first: Whole, i: u32) -> vec4<f32> {
    let at = first + 2u * i;
    return bitcast<vec4<f32>>(vec4<u32>(heads_prepared(at), heads_prepared(at + 1u)));
}

fn heads_query(c: u32) -> HeadsQuery {
    return HeadsQuery(heads_shown[c >> 1u], heads_shown[(c >> 1u) + 1u]);
}

// Four channels of the queries that start at these words.
fn heads_given(first: Whole, c: u32) -> HeadsQuery {
    return HeadsQuery(heads_four(first, c >> 1u), heads_four(first, (c >> 1u) + 1u));
}

fn heads_dot(start: Real, query: HeadsQuery, row: vec4<f32>) -> Real {
    var sum = start + query.a.xy * row.x;
    sum += query.a.zw * row.y;
    sum += query.b.xy * row.z;
    return sum + query.b.zw * row.w;
}

// Products of four bytes of the queries with four others, added up.
fn heads_dot_bytes(start: Integer, query: Whole, word: u32) -> Integer {
    return start + vec2<i32>(dot4I8Packed(query.x, word), dot4I8Packed(query.y, word));
}

fn heads_store(place: Whole, channel: u32, value: Real) {
    if place.x != HEADS_NOWHERE {
        partials[place.x + channel] = value.x;
    }
    if place.y != HEADS_NOWHERE {
        partials[place.y + channel] = value.y;
    }
}
