//! The fragments that every shader shares, against the host's arithmetic, bit for bit.

use half::{bf16, f16};
use wgkv::gpu::{Binding, Groups, Kernel, Magic, Params, ParamsLayout, Slice, Variant};
use wgkv::layout::{decode_scale, encode_scale};

use crate::support;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct WordsParams {
    count: u32,
    multiplier: u32,
    shift1: u32,
    shift2: u32,
}

impl Params for WordsParams {
    const LAYOUT: ParamsLayout = ParamsLayout {
        size: 16,
        fields: &[("count", 0), ("multiplier", 4), ("shift1", 8), ("shift2", 12)],
        parts: &[],
    };
}

/// A kernel that applies an expression over `word`, `index` and `params` to every word.
macro_rules! words {
    ($name:literal, $expression:literal) => {
        Kernel {
            name: $name,
            source: concat!(
                include_str!("../../wgsl/common/element.wgsl"),
                include_str!("../../wgsl/common/divide.wgsl"),
                "struct Params { count: u32, multiplier: u32, shift1: u32, shift2: u32 }
                @group(0) @binding(0) var<uniform> params: Params;
                @group(0) @binding(1) var<storage, read> input: array<u32>;
                @group(0) @binding(2) var<storage, read_write> output: array<u32>;
                @compute @workgroup_size(64)
                fn main(
                    @builtin(workgroup_id) group: vec3<u32>,
                    @builtin(num_workgroups) groups: vec3<u32>,
                    @builtin(local_invocation_index) lane: u32,
                ) {
                    let index = (group.y * groups.x + group.x) * 64u + lane;
                    if index < params.count {
                        let word = input[index];
                        output[index] = ",
                $expression,
                ";
                    }
                }"
            ),
            bindings: &[Binding::Read("input"), Binding::Write("output")],
            params: WordsParams::LAYOUT,
        }
    };
}

static HALF: Kernel = words!("test/half", "element_half(word)");
static F16_BITS: Kernel = words!("test/f16", "element_bits(word, 0u, 1u)");
static F16_HIGH_BITS: Kernel = words!("test/f16 high", "element_bits(word << 16u, 1u, 1u)");
static BF16_BITS: Kernel = words!("test/bf16", "element_bits(word << 16u, 1u, 2u)");
static READ_F16: Kernel = words!("test/read f16", "bitcast<u32>(element_read(word, 0u, 1u))");
static READ_F32: Kernel = words!("test/read f32", "bitcast<u32>(element_read(word, 7u, 0u))");
static ENCODE: Kernel = words!("test/encode scale", "element_encode_scale(bitcast<f32>(word))");
static DECODE: Kernel = words!("test/decode scale", "bitcast<u32>(element_decode_scale(word))");
static DIVIDE: Kernel =
    words!("test/divide", "divide_magic(word, params.multiplier, params.shift1, params.shift2)");

fn apply(kernel: &'static Kernel, input: &[u32], magic: Magic) -> Vec<u32> {
    let context = support::context();
    let source = context.upload("input", bytemuck::cast_slice(input)).unwrap();
    let output = context.create("output", source.size()).unwrap();
    let params = WordsParams {
        count: input.len() as u32,
        multiplier: magic.multiplier,
        shift1: magic.shift1,
        shift2: magic.shift2,
    };
    let readback = support::run(|recorder| {
        let groups = Groups((input.len() as u64).div_ceil(64));
        let slices = [Slice::all(&source), Slice::all(&output)];
        recorder.dispatch(kernel, &Variant::default(), &params, &slices, groups)?;
        recorder.read_back(Slice::all(&output))
    })
    .unwrap();
    bytemuck::pod_collect_to_vec(&support::wait(readback))
}

/// Applies `kernel` and compares each word with what `expect` makes of it; NaN equals NaN.
fn compare(
    kernel: &'static Kernel,
    input: &[u32],
    is_nan: fn(u32) -> bool,
    expect: fn(u32) -> u32,
) {
    let got = apply(kernel, input, Magic::new(1));
    for (&word, &got) in input.iter().zip(&got) {
        let expected = expect(word);
        assert!(
            got == expected || is_nan(got) && is_nan(expected),
            "{}: {word:#010x} gave {got:#010x}, expected {expected:#010x}",
            kernel.name
        );
    }
}

fn nan32(bits: u32) -> bool {
    f32::from_bits(bits).is_nan()
}

fn nan16(bits: u32) -> bool {
    f16::from_bits(bits as u16).is_nan()
}

/// f32 patterns: every exponent with mantissas at the borders of f16 and bf16, and scattered ones.
fn patterns() -> Vec<u32> {
    let mut patterns = Vec::new();
    let mut seed = 1u32;
    for exponent in 0..=255u32 {
        let mut mantissas = vec![0, 1, 0x7f_ffff, 0x7f_fffe];
        for bit in 0..23 {
            mantissas.extend([(1 << bit) - 1, 1 << bit, (1 << bit) + 1, 0x7f_ffff ^ (1 << bit)]);
        }
        for _ in 0..160 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            mantissas.push(seed >> 9);
            // Ties and their neighbours, for f16 and for bf16.
            mantissas.extend([seed >> 9 & !0x1fff | 0x1000, seed >> 9 & !0xffff | 0x8000]);
        }
        for mantissa in mantissas {
            let bits = exponent << 23 | mantissa & 0x7f_ffff;
            patterns.extend([bits, bits | 0x8000_0000]);
        }
    }
    patterns
}

fn halves() -> Vec<u32> {
    (0..=0xffff).collect()
}

#[test]
fn f32_rounds_to_f16_as_on_the_host() {
    compare(&HALF, &patterns(), nan16, |bits| {
        u32::from(f16::from_f32(f32::from_bits(bits)).to_bits())
    });
}

#[test]
fn every_half_widens_as_on_the_host() {
    let widen: fn(u32) -> u32 = |bits| f16::from_bits(bits as u16).to_f32().to_bits();
    compare(&F16_BITS, &halves(), nan32, widen);
    compare(&F16_HIGH_BITS, &halves(), nan32, widen);
    compare(&BF16_BITS, &halves(), nan32, |bits| bf16::from_bits(bits as u16).to_f32().to_bits());
}

#[test]
fn every_half_survives_the_way_there_and_back() {
    let widened = apply(&F16_BITS, &halves(), Magic::new(1));
    let back = apply(&HALF, &widened, Magic::new(1));
    for (half, back) in halves().into_iter().zip(back) {
        assert!(half == back || nan16(half) && nan16(back), "{half:#06x} came back as {back:#06x}");
    }
}

#[test]
fn what_is_not_finite_reads_as_zero() {
    compare(&READ_F16, &halves(), nan32, |bits| {
        let value = f16::from_bits(bits as u16).to_f32();
        if value.is_finite() { value.to_bits() } else { 0 }
    });
    let special = [0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7fc0_0000, 0xffff_ffff, 0x7f7f_ffff];
    compare(
        &READ_F32,
        &special,
        nan32,
        |bits| {
            if f32::from_bits(bits).is_finite() { bits } else { 0 }
        },
    );
}

#[test]
fn scales_are_stored_as_on_the_host() {
    let scales: Vec<u32> =
        patterns().into_iter().filter(|&bits| bits < f32::INFINITY.to_bits()).collect();
    compare(&ENCODE, &scales, |_| false, |bits| u32::from(encode_scale(f32::from_bits(bits))));
    compare(&DECODE, &halves(), nan32, |bits| decode_scale(bits as u16).to_bits());
}

#[test]
fn magic_divides_as_division_does() {
    let divisors = (1..=300)
        .chain((5..32).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]))
        .chain([1000, 65_535, 131_072, 641, 6_700_417, u32::MAX - 1, u32::MAX]);
    let mut seed = 7u32;
    for divisor in divisors {
        let mut dividends = vec![0, 1, 0x1_0004, 4_294_967_294, u32::MAX, u32::MAX >> 1, 1 << 31];
        for multiple in [1, 2, 3, u32::MAX / divisor] {
            let product = divisor.wrapping_mul(multiple);
            dividends.extend([product.wrapping_sub(1), product, product.wrapping_add(1)]);
        }
        for _ in 0..64 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            dividends.extend([seed, seed >> (seed >> 27)]);
        }
        let magic = Magic::new(divisor);
        for &dividend in &dividends {
            assert_eq!(magic.divide(dividend), dividend / divisor, "{dividend} / {divisor}");
        }
        // The shader once per family of divisors: a dispatch each would take minutes.
        if divisor < 40 || divisor.is_power_of_two() || divisor > 65_000 {
            let got = apply(&DIVIDE, &dividends, magic);
            for (&dividend, got) in dividends.iter().zip(got) {
                assert_eq!(got, dividend / divisor, "{dividend} / {divisor} in WGSL");
            }
        }
    }
}
