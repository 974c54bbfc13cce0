// Elements of tensors that come as words: f32 (dtype 0), or two f16 (1) or bf16 (2) a word.
// Decoded by integers, so that f16 subnormals survive and NaN or Inf are seen on the stored bits,
// before any arithmetic that a compiler may assume to be free of them. Non-finite reads as 0.

// Word that holds element `index`.
fn element_word(index: u32, dtype: u32) -> u32 {
    return select(index >> 1u, index, dtype == 0u);
}

// The stored bits of element `index`, widened to those of an f32 (NaN and Inf kept).
fn element_bits(word: u32, index: u32, dtype: u32) -> u32 {
    if dtype == 0u {
        return word;
    }
    let half = (word >> ((index & 1u) * 16u)) & 0xffffu;
    if dtype == 2u {
        return half << 16u;
    }
    let sign = (half & 0x8000u) << 16u;
    let exponent = (half >> 10u) & 31u;
    let mantissa = half & 0x3ffu;
    let normal = ((exponent + 112u) << 23u) | (mantissa << 13u);
    let subnormal = bitcast<u32>(f32(mantissa) * 5.9604644775390625e-8);
    let special = 0x7f800000u | (mantissa << 13u);
    let magnitude = select(select(normal, subnormal, exponent == 0u), special, exponent == 31u);
    return sign | magnitude;
}

fn element_finite(bits: u32) -> bool {
    return (bits & 0x7f800000u) != 0x7f800000u;
}

// Element `index`, which lies in `word`, as f32; NaN and Inf as 0.
fn element_read(word: u32, index: u32, dtype: u32) -> f32 {
    let bits = element_bits(word, index, dtype);
    return bitcast<f32>(select(0u, bits, element_finite(bits)));
}

// Rounds the bits of an f32 to those of an f16: to nearest, ties to even, subnormals kept, beyond
// the range Inf, NaN kept as NaN. Written in integers because WGSL leaves the rounding of
// pack2x16float open.
fn element_half(bits: u32) -> u32 {
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u | ((magnitude >> 13u) & 0x3ffu);
    }
    if magnitude >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if magnitude >= 0x38800000u {
        let rebased = magnitude - 0x38000000u;
        return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
    }
    if magnitude < 0x33000000u {
        return sign;
    }
    let exponent = magnitude >> 23u;
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let low = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let kept = mantissa >> shift;
    let up = low > middle || (low == middle && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

// A row scale in 16 bits: layout::encode_scale.
fn element_encode_scale(scale: f32) -> u32 {
    let bits = bitcast<u32>(scale);
    let half = element_half(bits);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(half, 0x8000u | min(rounded, 0x7f7fu), half >= 0x7c00u);
}

// Reads back what element_encode_scale stored.
fn element_decode_scale(stored: u32) -> f32 {
    let plain = element_bits(stored, 0u, 1u);
    return bitcast<f32>(select(plain, (stored & 0x7fffu) << 16u, (stored & 0x8000u) != 0u));
}

// Four f32, NaN and Inf as 0.
fn element_real(bits: vec4<u32>) -> vec4<f32> {
    let finite = (bits & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return bitcast<vec4<f32>>(select(vec4<u32>(0u), bits, finite));
}

// The four f16 (1) or bf16 (2) of two words, NaN and Inf as 0.
fn element_four(words: vec2<u32>, dtype: u32) -> vec4<f32> {
    let half = vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
    if dtype == 2u {
        return element_real(half << vec4<u32>(16u));
    }
    // Where all exponents are normal, the conversion is exact everywhere and takes one instruction.
    let exponents = ((words & vec2<u32>(0x7c007c00u)) + vec2<u32>(0x04000400u))
        & vec2<u32>(0x78007800u);
    let normals = exponents + vec2<u32>(0x78007800u);
    if (normals.x & normals.y & 0x80008000u) == 0x80008000u {
        return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    }
    let sign = (half & vec4<u32>(0x8000u)) << vec4<u32>(16u);
    let exponent = (half >> vec4<u32>(10u)) & vec4<u32>(31u);
    let mantissa = half & vec4<u32>(0x3ffu);
    let normal = ((exponent + vec4<u32>(112u)) << vec4<u32>(23u)) | (mantissa << vec4<u32>(13u));
    let subnormal = bitcast<vec4<u32>>(vec4<f32>(mantissa) * 5.9604644775390625e-8);
    let small = select(normal, subnormal, exponent == vec4<u32>(0u));
    let finite = select(small | sign, vec4<u32>(0u), exponent == vec4<u32>(31u));
    return bitcast<vec4<f32>>(finite);
}
