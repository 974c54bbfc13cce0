// What the mean of a page's keys adds to a logit where keys have a rotary embedding, which turns the
// mean to the position of each token: for each pair of channels a part that goes with the cosine of
// the pair's angle, and one that goes with the sine. Needs hadamard.wgsl for tokens of HEAD_DIM values,
// rope.wgsl and attend_packed.wgsl.
//
// Wants ROPE_FOURS, and ROPE_PART, how many pairs are before the workgroup at a time.

@group(0) @binding(9) var<uniform> rope: array<vec4<u32>, ROPE_FOURS>;

var<workgroup> rope_even: array<vec4<f32>, ROPE_PART>;
var<workgroup> rope_odd: array<vec4<f32>, ROPE_PART>;

// Takes in the mean of a page. To be called by the whole workgroup.
fn packed_mean_start(own: AttendLane, page: vec4<u32>, block: AttendBlock) -> vec4<f32> {
    for (var c = own.lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        hadamard_data[c] = packed_key_mean(page, c);
    }
    if packed_has(params.packed.key_form, PACKED_TURNED) {
        hadamard_back(own.lane);
        for (var c = own.lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
            hadamard_data[c] = hadamard_data[c] / params.packed.norm_k;
        }
    }
    workgroupBarrier();
    return vec4<f32>(0.0);
}

// What the mean adds for a token. To be called by the whole workgroup.
fn packed_mean_dot(
    own: AttendLane,
    page: vec4<u32>,
    block: AttendBlock,
    token: u32,
    start: vec4<f32>,
) -> vec4<f32> {
    var sum = start;
    let position = packed_position(page, min(token, params.packed.chunk - 1u));
    for (var first = 0u; first < HEAD_DIM / 2u; first += ROPE_PART) {
        let count = min(ROPE_PART, HEAD_DIM / 2u - first);
        for (var i = own.lane; i < count; i += SOFTMAX_LANES) {
            let at = rope_channels(first + i);
            let a = attend_real(block.query, at.x);
            let b = attend_real(block.query, at.y);
            rope_even[i] = a * hadamard_data[at.x] + b * hadamard_data[at.y];
            rope_odd[i] = b * hadamard_data[at.x] - a * hadamard_data[at.y];
        }
        workgroupBarrier();
        for (var i = 0u; i < count; i++) {
            let turn = rope_turn(first + i, position);
            sum += rope_even[i] * turn.x + rope_odd[i] * turn.y;
        }
        workgroupBarrier();
    }
    return sum;
}
