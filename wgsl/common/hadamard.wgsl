// The transform of src/nsnquant/hadamard.rs, without the factor 1 / sqrt(d), on tokens that lie one
// after the other in hadamard_data. Same sums in the same order as there.
//
// Wants these constants: HADAMARD_LANES, invocations of the workgroup, a multiple of 32;
// HADAMARD_VALUES, values in hadamard_data, a multiple of the head dimension; HADAMARD_ORDER, m;
// HADAMARD_RUN_LOG, k; HADAMARD_SIGNED, 1 where there is a seed, and HADAMARD_SEED; HADAMARD_FORWARD and HADAMARD_BACK, where the rows of H_m and of its
// transpose start in the table.

// Rows of H_12, H_20, its transpose and H_28; a bit is set where the entry is -1.
const HADAMARD_ROWS: array<u32, 81> = array<u32, 81>(
    0x0u,
    0x2u, 0xaabu, 0x3c8u, 0x96eu, 0xf20u, 0x5bau, 0xc8cu, 0x6e6u, 0x23cu, 0xb96u, 0x8f0u, 0xe5au,
    0x0u, 0x615e5u, 0xc2bc9u, 0x85793u, 0xaf27u, 0x15e4du, 0x2bc99u, 0x57931u, 0xaf261u, 0x5e4c3u,
    0xbc985u, 0x7930bu, 0xf2615u, 0xe4c2bu, 0xc9857u, 0x930afu, 0x2615fu, 0x4c2bdu, 0x98579u,
    0x30af3u,
    0xffffeu, 0x9ea18u, 0x3d432u, 0x7a864u, 0xf50c8u, 0xea192u, 0xd4326u, 0xa864eu, 0x50c9eu,
    0xa193cu, 0x4327au, 0x864f4u, 0xc9eau, 0x193d4u, 0x327a8u, 0x64f50u, 0xc9ea0u, 0x93d42u,
    0x27a86u, 0x4f50cu,
    0x2u, 0xaaaaaabu, 0x30ff0c8u, 0x9a55a6eu, 0xc3fc320u, 0x69569bau, 0xff0c8cu, 0xa55a6e6u,
    0x3fc3230u, 0x9569b9au, 0xff0c8c0u, 0x55a6e6au, 0xfc3230cu, 0x569b9a6u, 0xf0c8c3cu, 0x5a6e696u,
    0xc3230fcu, 0x69b9a56u, 0xc8c3fcu, 0xa6e6956u, 0x3230ff0u, 0x9b9a55au, 0xc8c3fc0u, 0x6e6956au,
    0x230ff0cu, 0xb9a55a6u, 0x8c3fc30u, 0xe69569au,
);

var<workgroup> hadamard_data: array<f32, HADAMARD_VALUES>;
var<workgroup> hadamard_signs: array<u32, 32>;

// Transforms every token; `table` is HADAMARD_FORWARD or HADAMARD_BACK. To be called by the whole
// workgroup; what was written before is seen, and so is the result after.
fn hadamard_apply(lane: u32, table: u32) {
    if HADAMARD_ORDER > 1u && lane < HADAMARD_ORDER {
        hadamard_signs[lane] = HADAMARD_ROWS[table + lane];
    }
    workgroupBarrier();
    for (var log = 0u; log < HADAMARD_EIGHTS; log += 3u) {
        for (var group = lane; group < HADAMARD_VALUES / 8u; group += HADAMARD_LANES) {
            hadamard_eight(group, log);
        }
        workgroupBarrier();
    }
    if HADAMARD_RUN_LOG == HADAMARD_EIGHTS + 2u {
        for (var group = lane; group < HADAMARD_VALUES / 4u; group += HADAMARD_LANES) {
            hadamard_four(group);
        }
        workgroupBarrier();
    }
    if HADAMARD_RUN_LOG == HADAMARD_EIGHTS + 1u {
        for (var group = lane; group < HADAMARD_VALUES / 2u; group += HADAMARD_LANES) {
            hadamard_two(group);
        }
        workgroupBarrier();
    }
    if HADAMARD_ORDER > 1u {
        hadamard_mix(lane);
    }
}

// Whether the seed negates a channel (src/nsnquant/hadamard.rs).
fn hadamard_negative(channel: u32) -> bool {
    var x = HADAMARD_SEED + channel * 0x9e3779b9u;
    x = (x ^ (x >> 16u)) * 0x85ebca6bu;
    x = (x ^ (x >> 13u)) * 0xc2b2ae35u;
    return ((x ^ (x >> 16u)) & 1u) == 1u;
}

// Negates the channels that the seed says.
fn hadamard_flip(lane: u32) {
    for (var c = lane; c < HADAMARD_DIM; c += HADAMARD_LANES) {
        if hadamard_negative(c) {
            for (var at = c; at < HADAMARD_VALUES; at += HADAMARD_DIM) {
                hadamard_data[at] = -hadamard_data[at];
            }
        }
    }
}

// The transform with the signs of its seed. To be called by the whole workgroup, as its inverse.
fn hadamard_forward(lane: u32) {
    if HADAMARD_SIGNED == 1u {
        workgroupBarrier();
        hadamard_flip(lane);
    }
    hadamard_apply(lane, HADAMARD_FORWARD);
}

fn hadamard_back(lane: u32) {
    hadamard_apply(lane, HADAMARD_BACK);
    if HADAMARD_SIGNED == 1u {
        hadamard_flip(lane);
        workgroupBarrier();
    }
}

const HADAMARD_DIM: u32 = HADAMARD_ORDER << HADAMARD_RUN_LOG;

// Stages that are done three at a time, on eight values in registers: the same sums as stage after
// stage, with a third of the barriers.
const HADAMARD_EIGHTS: u32 = HADAMARD_RUN_LOG / 3u * 3u;

// First value of group `group`, whose values lie `1 << log` apart and number `1 << count`.
fn hadamard_first(group: u32, log: u32, count: u32) -> u32 {
    return ((group >> log) << (log + count)) | (group & ((1u << log) - 1u));
}

// Distances 1 and 2 within four values.
fn hadamard_pairs(v: vec4<f32>) -> vec4<f32> {
    let a = vec4<f32>(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    return vec4<f32>(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
}

fn hadamard_load(at: u32, distance: u32) -> vec4<f32> {
    return vec4<f32>(
        hadamard_data[at],
        hadamard_data[at + distance],
        hadamard_data[at + 2u * distance],
        hadamard_data[at + 3u * distance],
    );
}

fn hadamard_store(at: u32, distance: u32, v: vec4<f32>) {
    hadamard_data[at] = v.x;
    hadamard_data[at + distance] = v.y;
    hadamard_data[at + 2u * distance] = v.z;
    hadamard_data[at + 3u * distance] = v.w;
}

fn hadamard_eight(group: u32, log: u32) {
    let at = hadamard_first(group, log, 3u);
    let distance = 1u << log;
    let low = hadamard_pairs(hadamard_load(at, distance));
    let high = hadamard_pairs(hadamard_load(at + 4u * distance, distance));
    hadamard_store(at, distance, low + high);
    hadamard_store(at + 4u * distance, distance, low - high);
}

fn hadamard_four(group: u32) {
    let distance = 1u << HADAMARD_EIGHTS;
    let at = hadamard_first(group, HADAMARD_EIGHTS, 2u);
    hadamard_store(at, distance, hadamard_pairs(hadamard_load(at, distance)));
}

fn hadamard_two(group: u32) {
    let at = hadamard_first(group, HADAMARD_EIGHTS, 1u);
    let low = hadamard_data[at];
    let high = hadamard_data[at + (1u << HADAMARD_EIGHTS)];
    hadamard_data[at] = low + high;
    hadamard_data[at + (1u << HADAMARD_EIGHTS)] = low - high;
}

// A column holds the values of one place in all runs of a token: m of them, HADAMARD_RUN apart.
// Group of lanes that share a column: the smallest power of two not below m.
const HADAMARD_GROUP_LOG: u32 = select(5u, 4u, HADAMARD_ORDER == 12u);
const HADAMARD_RUN: u32 = 1u << HADAMARD_RUN_LOG;
const HADAMARD_COLUMNS: u32 = HADAMARD_VALUES / HADAMARD_ORDER;

fn hadamard_mix(lane: u32) {
    let row = lane & ((1u << HADAMARD_GROUP_LOG) - 1u);
    let signs = hadamard_signs[row];
    for (var first = 0u; first < HADAMARD_COLUMNS; first += HADAMARD_LANES >> HADAMARD_GROUP_LOG) {
        let column = first + (lane >> HADAMARD_GROUP_LOG);
        let live = row < HADAMARD_ORDER && column < HADAMARD_COLUMNS;
        let token = column >> HADAMARD_RUN_LOG;
        let start = token * (HADAMARD_ORDER << HADAMARD_RUN_LOG) + (column & (HADAMARD_RUN - 1u));
        var sum = 0.0;
        if live {
            for (var run = 0u; run < HADAMARD_ORDER; run++) {
                let value = hadamard_data[start + run * HADAMARD_RUN];
                sum += select(value, -value, ((signs >> run) & 1u) == 1u);
            }
        }
        workgroupBarrier();
        if live {
            hadamard_data[start + row * HADAMARD_RUN] = sum;
        }
    }
    workgroupBarrier();
}
