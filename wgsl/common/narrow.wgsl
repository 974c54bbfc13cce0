// Elements of one type as those of another: to f16 (1) and bf16 (2) by round-to-nearest-even, finite
// values beyond the range as the largest of the type. Needs element.wgsl.

// The bits of an f32 as those of an f16 or bf16.
fn narrow_bits(bits: u32, dtype: u32) -> u32 {
    if dtype == 1u {
        let half = element_half(bits);
        let beyond = element_finite(bits) && (half & 0x7fffu) == 0x7c00u;
        return select(half, (half & 0x8000u) | 0x7bffu, beyond);
    }
    let magnitude = bits & 0x7fffffffu;
    let up = (magnitude + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    let held = select(up, min(up, 0x7f7fu), element_finite(bits));
    let rounded = ((bits >> 16u) & 0x8000u) | held;
    let nan = (bits >> 16u) | 0x40u;
    return select(rounded, nan, magnitude > 0x7f800000u);
}

// The bits of element `index`, which lies in `word`, as those of an f32; NaN comes quiet, as the
// host's conversions make it.
fn narrow_wide(word: u32, index: u32, dtype: u32) -> u32 {
    let bits = element_bits(word, index, dtype);
    return bits | select(0u, 0x400000u, (bits & 0x7fffffffu) > 0x7f800000u);
}

// Elements `index` and `index + 1` of type `from`, which lie in `first` and `second`, as one word of
// 16-bit elements of type `to`; `index` is even.
fn narrow_pair(first: u32, second: u32, index: u32, from_dtype: u32, to_dtype: u32) -> u32 {
    let low = narrow_bits(narrow_wide(first, index, from_dtype), to_dtype);
    return low | (narrow_bits(narrow_wide(second, index + 1u, from_dtype), to_dtype) << 16u);
}
