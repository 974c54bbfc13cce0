// Parts of a packed page, whose planes src/layout.rs lays out. Needs element.wgsl.

// Byte `index` of a plane, which lies in `word`, the plane's word `index >> 2`.
fn page_byte(word: u32, index: u32) -> u32 {
    return (word >> ((index & 3u) * 8u)) & 0xffu;
}

// Bits of half `index` of a vector, which lie in `word`, the vector's word `index >> 1`.
fn page_half(word: u32, index: u32) -> u32 {
    return (word >> ((index & 1u) * 16u)) & 0xffffu;
}

// A first scale: element_encode_scale's 16 bits. One that no encoder made may be non-finite and reads
// as 0, as a second scale or a mean does.
fn page_scale(word: u32, index: u32) -> f32 {
    let stored = page_half(word, index);
    let top = select(0x7c00u, 0x7f80u, (stored & 0x8000u) != 0u);
    return element_decode_scale(select(stored, 0u, (stored & top) == top));
}

// A second scale or a mean: f16.
fn page_real(word: u32, index: u32) -> f32 {
    return element_read(word, index, 1u);
}

// Channels `signs` bit 0 to 3 of a centroid, negated where the bit is 0.
fn page_signed(row: vec4<f32>, signs: u32) -> vec4<f32> {
    let flips = (vec4<u32>(~signs) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(row) ^ flips);
}
