// What a workgroup answers together: one query of one row. See heads_4.wgsl.

alias Integer = i32;
alias Real = f32;
alias Whole = u32;
alias Flag = bool;

const HEADS: u32 = 1u;
const HEADS_NOWHERE: u32 = 0xffffffffu;
const HEADS_FOURS: u32 = HEAD_DIM / 4u;

// Four channels of the query.
struct HeadsQuery {
    a: vec4<f32>,
}

var<workgroup> heads_shown: array<vec4<f32>, HEADS_PARTS * HEADS_FOURS>;

fn heads_numbers() -> Whole {
    return 0u;
}

fn heads_any(flag: Flag) -> bool {
    return flag;
}

fn heads_prepared(at: Whole) -> Whole {
    return prepared[at];
}

fn heads_four(first: Whole, i: u32) -> vec4<f32> {
    let at = first + 4u * i;
    return bitcast<vec4<f32>>(
        vec4<u32>(prepared[at], prepared[at + 1u], prepared[at + 2u], prepared[at + 3u]));
}

fn heads_query(c: u32) -> HeadsQuery {
    return HeadsQuery(heads_shown[c >> 2u]);
}

// Four channels of the query that starts at this word.
fn heads_given(first: Whole, c: u32) -> HeadsQuery {
    return HeadsQuery(heads_four(first, c >> 2u));
}

fn heads_dot(start: Real, query: HeadsQuery, row: vec4<f32>) -> Real {
    var sum = start + query.a.x * row.x;
    sum += query.a.y * row.y;
    sum += query.a.z * row.z;
    return sum + query.a.w * row.w;
}

// Products of four bytes of the queries with four others, added up.
fn heads_dot_bytes(start: Integer, query: Whole, word: u32) -> Integer {
    return start + dot4I8Packed(query, word);
}

fn heads_store(place: Whole, channel: u32, value: Real) {
    if place != HEADS_NOWHERE {
        partials[place + channel] = value;
    }
}
