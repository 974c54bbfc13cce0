// SPDX-License-Identifier: MIT OR Apache-2.0
// What a device must get right before anything else can be: src/gpu/self_test.rs. 64 words a
// workgroup, 8 answers a word.

struct Params {
    words: u32,
    multiplier: u32,
    shift1: u32,
    shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read_write> answers: array<u32>;

const LANES: u32 = 64u;

var<workgroup> told: u32;
var<workgroup> keys: array<u32, 64>;
var<workgroup> places: array<u32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    let place = group.x * LANES + lane;
    let word = words[min(place, params.words - 1u)];

    // One lane tells, all others hear it, in turns.
    var heard = 0u;
    for (var turn = 0u; turn < LANES; turn++) {
        if lane == turn {
            told = word ^ turn;
        }
        workgroupBarrier();
        heard = heard * 33u + told;
        workgroupBarrier();
    }

    // The highest key of the workgroup, and the first lane that has it.
    keys[lane] = order_key(word);
    places[lane] = lane;
    workgroupBarrier();
    for (var reach = 32u; reach > 0u; reach >>= 1u) {
        if lane < reach {
            let other = keys[lane + reach];
            let theirs = places[lane + reach];
            let tie = other == keys[lane] && theirs < places[lane];
            if other > keys[lane] || tie {
                keys[lane] = other;
                places[lane] = theirs;
            }
        }
        workgroupBarrier();
    }
    let first = places[0];

    if place < params.words {
        let at = place * 8u;
        answers[at] = u32(element_finite(word));
        answers[at + 1u] = bitcast<u32>(element_read(word, 0u, 0u));
        answers[at + 2u] = order_key(word);
        answers[at + 3u] = element_half(word);
        answers[at + 4u] = divide_magic(word, params.multiplier, params.shift1, params.shift2);
        answers[at + 5u] = heard;
        answers[at + 6u] = first;
        answers[at + 7u] = lane;
    }
}
