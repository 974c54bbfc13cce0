// The pieces of 8 channels of a batch of tokens that a lane owns: up to four, LANES apart from `lane` on.
// Needs element.wgsl, turn.wgsl, Piece and Four (nearest.wgsl), encode_words as encode.wgsl wants it, and the
// codec's constants (src/nsnquant/gpu/device.rs).

// Token of the batch that owns a piece. Exact for places below 256 and up to 64 pieces a token.
fn batch_token(place: u32) -> u32 {
    return (place * PIECES_MAGIC) >> 16u;
}

// A piece of the batch.
struct Place {
    // Among the pieces of the batch, and those of its own token.
    index: u32,
    token: u32,
    channel: u32,
    // Whether there is such a piece in a batch, and in this one.
    inside: bool,
    live: bool,
}

// Piece `index` of the batch of `count` tokens.
fn place_of(index: u32, count: u32) -> Place {
    if TURN_PLAIN == 1u {
        // Batches are full.
        let token = index >> TURN_LOG;
        return Place(index, token, (index & (PIECES - 1u)) << 3u, true, token < count);
    }
    let token = batch_token(index);
    let channel = (index - token * PIECES) * 8u;
    return Place(index, min(token, BATCH - 1u), channel, token < BATCH, token < min(BATCH, count));
}

// The eight f16 of four words, NaN and Inf as 0.
fn half_piece(words: vec4<u32>) -> Piece {
    // Where all exponents are normal, as in element_four.
    let exponents = words & vec4<u32>(0x7c007c00u);
    let above = exponents + vec4<u32>(0x7c007c00u);
    let below = ~(exponents + vec4<u32>(0x04000400u));
    let normal = (above.x & above.y & above.z & above.w) & (below.x & below.y & below.z & below.w);
    if (normal & 0x80008000u) == 0x80008000u {
        return Piece(
            vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)),
            vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w)),
        );
    }
    return Piece(element_four(words.xy, 1u), element_four(words.zw, 1u));
}

// The lane's pieces of a batch of `count` tokens whose elements start at `base`; the last token's where
// there is none. All words are asked for before any is looked at, which would wait for it.
fn read_four(lane: u32, count: u32, base: u32) -> Four {
    let a = index_of(lane, count, base);
    let b = index_of(lane + LANES, count, base);
    let c = index_of(lane + 2u * LANES, count, base);
    let d = index_of(lane + 3u * LANES, count, base);
    if params.dtype == 0u {
        let a_low = encode_words(a);
        let b_low = encode_words(b);
        let c_low = encode_words(c);
        let d_low = encode_words(d);
        let a_high = encode_words(a + 4u);
        let b_high = encode_words(b + 4u);
        let c_high = encode_words(c + 4u);
        let d_high = encode_words(d + 4u);
        return Four(
            Piece(element_real(a_low), element_real(a_high)),
            Piece(element_real(b_low), element_real(b_high)),
            Piece(element_real(c_low), element_real(c_high)),
            Piece(element_real(d_low), element_real(d_high)),
        );
    }
    let a_words = encode_words(a >> 1u);
    let b_words = encode_words(b >> 1u);
    let c_words = encode_words(c >> 1u);
    let d_words = encode_words(d >> 1u);
    if params.dtype == 2u {
        return Four(
            Piece(element_four(a_words.xy, 2u), element_four(a_words.zw, 2u)),
            Piece(element_four(b_words.xy, 2u), element_four(b_words.zw, 2u)),
            Piece(element_four(c_words.xy, 2u), element_four(c_words.zw, 2u)),
            Piece(element_four(d_words.xy, 2u), element_four(d_words.zw, 2u)),
        );
    }
    return Four(half_piece(a_words), half_piece(b_words), half_piece(c_words), half_piece(d_words));
}

// First element of a piece, of the last token's where there is none.
fn index_of(place: u32, count: u32, base: u32) -> u32 {
    let own = place_of(place, count);
    return base + min(own.token, count - 1u) * HEAD_DIM + own.channel;
}
