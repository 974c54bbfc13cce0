// What the mean of a page's keys adds to a logit where keys have no rotary embedding: the same for
// all tokens. Needs attend_packed.wgsl.

// Takes in the mean of a page. To be called by the whole workgroup.
fn packed_mean_start(own: AttendLane, page: vec4<u32>, block: AttendBlock) -> vec4<f32> {
    var part = vec4<f32>(0.0);
    // A mean in the Hadamard domain meets the transformed query.
    let shown = select(0u, HEAD_DIM, packed_has(params.packed.key_form, PACKED_TURNED));
    for (var c = own.lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        part += attend_real(block.query, shown + c) * packed_key_mean(page, c);
    }
    return softmax_sum(own.lane, part);
}

// What the mean adds for a token.
fn packed_mean_dot(
    own: AttendLane,
    page: vec4<u32>,
    block: AttendBlock,
    token: u32,
    start: vec4<f32>,
) -> vec4<f32> {
    return start;
}
