// SPDX-License-Identifier: MIT OR Apache-2.0
// Writes the completion word of a submit. Dispatched by src/gpu/readback.rs; one workgroup.

struct Params {
    nonce: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> word: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    if lane == 0u {
        word[0] = params.nonce;
    }
}
