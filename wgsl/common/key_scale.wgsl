// Key scales: f16 factors of the channels of a head, two a word. Needs the binding key_scales: array<u32>.

// 2^-10 in f16, and how many steps of f16 the largest factor, 2^10, lies above it.
const KEY_SCALE_LEAST: u32 = 0x1400u;
const KEY_SCALE_STEPS: u32 = 0x5000u;

// The factor that 16 bits stand for; one that no encoder made counts as 1. Factors are positive and normal,
// so their bits are in their order, and one comparison holds them to both limits. Two, joined by &&, would
// be a branch, and one for each of a lane's 32 factors takes SwiftShader's compiler minutes and gigabytes:
// about twice the time for each one or two more.
fn key_scale_read(half: u32) -> f32 {
    let value = bitcast<f32>((half + 0x1c000u) << 13u);
    return select(1.0, value, half - KEY_SCALE_LEAST <= KEY_SCALE_STEPS);
}

// The factor of a channel of the scale that starts at word `first`.
fn key_scale_factor(first: u32, channel: u32) -> f32 {
    return key_scale_of(key_scales[first + (channel >> 1u)], channel);
}

// The same, of the word that it lies in.
fn key_scale_of(word: u32, channel: u32) -> f32 {
    return key_scale_read((word >> ((channel & 1u) * 16u)) & 0xffffu);
}

// Those of four channels, the first of which is a multiple of 2.
fn key_scale_four(first: u32, channel: u32) -> vec4<f32> {
    let at = first + (channel >> 1u);
    let low = key_scales[at];
    let high = key_scales[at + 1u];
    return vec4<f32>(
        key_scale_read(low & 0xffffu),
        key_scale_read(low >> 16u),
        key_scale_read(high & 0xffffu),
        key_scale_read(high >> 16u),
    );
}
