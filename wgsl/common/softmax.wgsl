// Split softmax of a block of queries. Logits are to base 2; what they are limited to and the factor
// of the weights stand in src/attention/plan.rs.
//
// Wants SOFTMAX_LANES: invocations of the workgroup, 64, 128 or 256; and heads_4.wgsl or a sibling.

// A logit of no key: below any logit, and finite even less the largest logit.
const SOFTMAX_UNSEEN: f32 = -1.7014118e38;
const SOFTMAX_FACTOR: f32 = 9.5367431640625e-7;
const SOFTMAX_ROWS: u32 = SOFTMAX_LANES / 8u;

var<workgroup> softmax_scratch: array<Real, SOFTMAX_LANES>;

// The logit of a dot product but for a power of two: limited, then times `factor`.
fn softmax_product(dot: Real, limit: Real, factor: Real) -> Real {
    return clamp(dot, -limit, limit) * factor;
}

// The same times 2^`boost`. The power is added to the exponent, because a compiler may multiply the two
// factors first, and their product may overflow.
fn softmax_boosted(product: Real, boost: Whole) -> Real {
    let logit = bitcast<Whole>(product);
    let normal = (logit & Whole(0x7f800000u)) != Whole(0u);
    return bitcast<Real>(select(logit, logit + (boost << Whole(23u)), normal));
}

fn softmax_logit(dot: Real, limit: Real, factor: Real, boost: Whole) -> Real {
    let product = softmax_product(dot, limit, factor);
    if !heads_any(boost != Whole(0u)) {
        return product;
    }
    return softmax_boosted(product, boost);
}

// cap * tanh(logit / cap), the inverse of the cap being given: by its series below 0.8, where the
// quotient of powers would lose digits.
fn softmax_cap(logit: Real, cap: f32, inverse: f32) -> Real {
    let x = clamp(logit, Real(-16.0 * cap), Real(16.0 * cap)) * inverse;
    let size = abs(x);
    let square = min(size * size, Real(1.0));
    var series = Real(0.0015773912);
    series = series * square - 0.0073953067;
    series = series * square + 0.021292654;
    series = series * square - 0.05384889;
    series = series * square + 0.13332170;
    series = series * square - 0.33333295;
    let small = size + size * (square * series);
    // 2 log2 e
    let power = exp2(size * -2.8853901);
    let large = (1.0 - power) / (1.0 + power);
    let bent = select(large, small, size < Real(0.8)) * cap;
    return select(bent, -bent, x < Real(0.0));
}

// 2^x for x of at most 0; 0 below -106.
fn softmax_power(x: Real) -> Real {
    return select(exp2(max(x, Real(-106.0))), Real(0.0), x < Real(-106.0));
}

// Largest value of the workgroup, for every lane. Lane l of the first eighth takes the values of
// lanes l, l + eighth, ...
fn softmax_max(lane: u32, value: Real) -> Real {
    softmax_scratch[lane] = value;
    workgroupBarrier();
    if lane < SOFTMAX_ROWS {
        var best = value;
        for (var k = 1u; k < 8u; k++) {
            best = max(best, softmax_scratch[lane + k * SOFTMAX_ROWS]);
        }
        softmax_scratch[lane] = best;
    }
    workgroupBarrier();
    var best = softmax_scratch[0];
    for (var k = 1u; k < SOFTMAX_ROWS; k++) {
        best = max(best, softmax_scratch[k]);
    }
    workgroupBarrier();
    return best;
}

// Sum of the values of the workgroup, for every lane, in the order of softmax_max.
fn softmax_sum(lane: u32, value: Real) -> Real {
    softmax_scratch[lane] = value;
    workgroupBarrier();
    if lane < SOFTMAX_ROWS {
        var sum = value;
        for (var k = 1u; k < 8u; k++) {
            sum += softmax_scratch[lane + k * SOFTMAX_ROWS];
        }
        softmax_scratch[lane] = sum;
    }
    workgroupBarrier();
    var sum = softmax_scratch[0];
    for (var k = 1u; k < SOFTMAX_ROWS; k++) {
        sum += softmax_scratch[k];
    }
    workgroupBarrier();
    return sum;
}

// Sum over groups of `count` lanes: lane l of the first group gets the values of lanes l,
// l + count, ... in order; the others get anything.
fn softmax_groups(lane: u32, value: Real, count: u32, groups: u32) -> Real {
    softmax_scratch[lane] = value;
    workgroupBarrier();
    var sum = value;
    if lane < count {
        for (var k = 1u; k < groups; k++) {
            sum += softmax_scratch[lane + k * count];
        }
    }
    workgroupBarrier();
    return sum;
}
