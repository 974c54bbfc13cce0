// Scores of a line that a lane takes in four rounds of WG lanes, which are on their way at the same time;
// `token` is one of them; beyond the last one that one again. Expects WG and the binding `scales`.

fn scores_ahead(base: u32, token: u32, last: u32) -> vec4<f32> {
    return vec4<f32>(
        scales[base + token],
        scales[base + min(token + WG, last - 1u)],
        scales[base + min(token + 2u * WG, last - 1u)],
        scales[base + min(token + 3u * WG, last - 1u)],
    );
}
