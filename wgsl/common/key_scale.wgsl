// Key scales: f16 factors of the channels of a head, two a word. Needs element.wgsl and the binding
// key_scales: array<u32>.

const KEY_SCALE_LEAST: f32 = 0.0009765625;
const KEY_SCALE_MOST: f32 = 1024.0;

// The factor of a channel of the scale that starts at word `first`; one that no encoder made counts
// as 1.
fn key_scale_factor(first: u32, channel: u32) -> f32 {
    return key_scale_of(key_scales[first + (channel >> 1u)], channel);
}

// The same, of the word that it lies in.
fn key_scale_of(word: u32, channel: u32) -> f32 {
    let value = element_read(word, channel, 1u);
    return select(1.0, value, value >= KEY_SCALE_LEAST && value <= KEY_SCALE_MOST);
}

fn key_scale_four(first: u32, channel: u32) -> vec4<f32> {
    return vec4<f32>(
        key_scale_factor(first, channel),
        key_scale_factor(first, channel + 1u),
        key_scale_factor(first, channel + 2u),
        key_scale_factor(first, channel + 3u),
    );
}
