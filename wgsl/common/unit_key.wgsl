// Normalised keys. Expects the bindings `keys` (words of the caller's tensor) and `factors`
// (nestedkv/norm), and `params.dim` and `params.dtype`.

// Channels 2 * pair and 2 * pair + 1 of token row `token`, brought to norm 1.
fn unit_key(token: u32, pair: u32) -> vec2<f32> {
    let index = token * params.dim + 2u * pair;
    let first = keys[element_word(index, params.dtype)];
    let second = keys[element_word(index + 1u, params.dtype)];
    let key = vec2<f32>(
        element_read(first, index, params.dtype),
        element_read(second, index + 1u, params.dtype),
    );
    // Factors are stored times 2^24.
    let factor = bitcast<f32>(factors[token] & 0x7fffffffu);
    return (key * 5.9604644775390625e-8) * factor;
}

// A normalised key in multiples of 2^-22, in which sums are exact.
fn unit_grid(key: vec2<f32>) -> vec2<i32> {
    return vec2<i32>(round(key * 4194304.0));
}
