// Keys as both passes over them read them: a lane takes 8 neighbouring channels of a token. Expects
// the constant DTYPE and the binding `keys`, in parts of 4 words; needs element.wgsl.

// The words of 8 channels; f32 fills both parts.
struct KeyWords {
    low: vec4<u32>,
    high: vec4<u32>,
}

// 8 channels.
struct Key {
    low: vec4<f32>,
    high: vec4<f32>,
}

// Rounds to multiples of 1: f32's unit from here to twice as much, on either side of 0 by a half.
const KEY_BINADE: f32 = 12582912.0;
const KEY_BINADE_BITS: u32 = 0x4b400000u;
// f16 cannot leave f32's range when it is multiplied by a factor alone; others are made smaller first.
// Powers of two change no digit.
const KEY_LESS: f32 = select(5.9604644775390625e-8, 1.0, DTYPE == 1u);
const KEY_MORE: f32 = select(4194304.0, 0.25, DTYPE == 1u);

// The words of part `part` of token row `token`; zeros where it is not `live`.
fn key_load(token: u32, part: u32, parts: u32, live: bool) -> KeyWords {
    var words = KeyWords(vec4<u32>(0u), vec4<u32>(0u));
    if live {
        let at = token * parts + part;
        if DTYPE == 0u {
            words.low = keys[2u * at];
            words.high = keys[2u * at + 1u];
        } else {
            words.low = keys[at];
        }
    }
    return words;
}

// Whether key_plain reads these words right: no NaN or Inf, and no f16 subnormals, which a device may
// take for 0.
fn key_is_plain(words: KeyWords) -> bool {
    if DTYPE == 1u {
        // The top bit of each half is set for subnormals and 0 by the one, for NaN and Inf by the other.
        let exponents = words.low & vec4<u32>(0x7c007c00u);
        let marks = (exponents - vec4<u32>(0x04000400u)) | (exponents + vec4<u32>(0x04000400u));
        return ((marks.x | marks.y | marks.z | marks.w) & 0x80008000u) == 0u;
    }
    if DTYPE == 2u {
        let low = (words.low & vec4<u32>(0x7f80u)) != vec4<u32>(0x7f80u);
        let high = (words.low & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
        return all(low) && all(high);
    }
    let low = (words.low & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    let high = (words.high & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return all(low) && all(high);
}

// Whether one of these words holds NaN or Inf.
fn key_is_broken(words: KeyWords) -> bool {
    if DTYPE == 1u {
        let low = (words.low & vec4<u32>(0x7c00u)) == vec4<u32>(0x7c00u);
        let high = (words.low & vec4<u32>(0x7c000000u)) == vec4<u32>(0x7c000000u);
        return any(low) || any(high);
    }
    return !key_is_plain(words);
}

// 8 channels of words that key_is_plain.
fn key_plain(words: KeyWords) -> Key {
    if DTYPE == 1u {
        return Key(
            vec4<f32>(unpack2x16float(words.low.x), unpack2x16float(words.low.y)),
            vec4<f32>(unpack2x16float(words.low.z), unpack2x16float(words.low.w)),
        );
    }
    if DTYPE == 2u {
        let even = bitcast<vec4<f32>>(words.low << vec4<u32>(16u));
        let odd = bitcast<vec4<f32>>(words.low & vec4<u32>(0xffff0000u));
        return Key(
            vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
    }
    return Key(bitcast<vec4<f32>>(words.low), bitcast<vec4<f32>>(words.high));
}

// 8 channels of any words; NaN and Inf as 0.
fn key_any(words: KeyWords) -> Key {
    if DTYPE == 0u {
        return Key(element_real(words.low), element_real(words.high));
    }
    return Key(element_four(words.low.xy, DTYPE), element_four(words.low.zw, DTYPE));
}

fn key_read(words: KeyWords, plain: bool) -> Key {
    if plain {
        return key_plain(words);
    }
    return key_any(words);
}

// What key_unit and key_grid multiply by, from a factor of nestedkv/anchor, of which the sign and the
// last bit are marks.
fn key_scale(factor: u32) -> f32 {
    return bitcast<f32>(factor & 0x7ffffffeu) * KEY_MORE;
}

// Channels of a key of norm 2^22.
fn key_unit(channels: vec4<f32>, scale: f32) -> vec4<f32> {
    return (channels * KEY_LESS) * scale;
}

// The same as integers, in which sums are exact, KEY_BINADE_BITS above their value. One instruction, so
// that a key has the same ones wherever it is read.
fn key_grid(channels: vec4<f32>, scale: f32) -> vec4<u32> {
    return bitcast<vec4<u32>>(
        fma(channels * KEY_LESS, vec4<f32>(scale), vec4<f32>(KEY_BINADE)));
}
