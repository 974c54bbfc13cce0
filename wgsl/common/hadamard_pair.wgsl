// The transform of hadamard.wgsl on one token, channels 2 * lane and 2 * lane + 1 of which a lane holds:
// the same sums in the same order, with fewer barriers and less code. Needs hadamard.wgsl, HADAMARD_VALUES
// to be the head dimension, and half as many lanes at least.

// Whether the first stage is done where the pairs are held, so that threes are left.
const HADAMARD_HELD: u32 = select(0u, 1u, HADAMARD_RUN_LOG == HADAMARD_EIGHTS + 1u);
const HADAMARD_PAIRS: u32 = HADAMARD_VALUES / 2u;

fn hadamard_pair_flip(own: u32, pair: vec2<f32>) -> vec2<f32> {
    return select(
        pair, -pair, vec2<bool>(hadamard_negative(2u * own), hadamard_negative(2u * own + 1u)));
}

// To be called by the whole workgroup: the pair that is held, the one number `own` of the result. The
// first HADAMARD_PAIRS lanes give theirs. What a lane has of one call it may give to the next.
fn hadamard_pair_apply(lane: u32, own: u32, held: vec2<f32>, table: u32) -> vec2<f32> {
    if HADAMARD_ORDER > 1u && lane < HADAMARD_ORDER {
        hadamard_signs[lane] = HADAMARD_ROWS[table + lane];
    }
    if lane < HADAMARD_PAIRS {
        let first = vec2<f32>(held.x + held.y, held.x - held.y);
        hadamard_data[2u * lane] = select(held.x, first.x, HADAMARD_HELD == 1u);
        hadamard_data[2u * lane + 1u] = select(held.y, first.y, HADAMARD_HELD == 1u);
    }
    workgroupBarrier();
    for (var log = HADAMARD_HELD; log < HADAMARD_HELD + HADAMARD_EIGHTS; log += 3u) {
        if lane < HADAMARD_VALUES / 8u {
            hadamard_eight(lane, log);
        }
        workgroupBarrier();
    }
    if HADAMARD_RUN_LOG == HADAMARD_EIGHTS + 2u {
        if lane < HADAMARD_VALUES / 4u {
            hadamard_four(lane);
        }
        workgroupBarrier();
    }
    if HADAMARD_ORDER > 1u {
        hadamard_mix(lane);
    }
    return vec2<f32>(hadamard_data[2u * own], hadamard_data[2u * own + 1u]);
}

fn hadamard_pair_forward(lane: u32, own: u32, held: vec2<f32>) -> vec2<f32> {
    if HADAMARD_SIGNED == 1u {
        return hadamard_pair_apply(lane, own, hadamard_pair_flip(own, held), HADAMARD_FORWARD);
    }
    return hadamard_pair_apply(lane, own, held, HADAMARD_FORWARD);
}

fn hadamard_pair_back(lane: u32, own: u32, held: vec2<f32>) -> vec2<f32> {
    let back = hadamard_pair_apply(lane, own, held, HADAMARD_BACK);
    if HADAMARD_SIGNED == 1u {
        return hadamard_pair_flip(own, back);
    }
    return back;
}
