// Division by a number that the host knows: gpu::Magic in src/gpu/params.rs. No shader here uses
// `/` or `%` on integers: Apple's compiler gets some of them wrong.

fn divide_high(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 16u);
    let cross = a_low * b_high + (middle & 0xffffu);
    return a_high * b_high + (middle >> 16u) + (cross >> 16u);
}

fn divide_magic(dividend: u32, multiplier: u32, shift1: u32, shift2: u32) -> u32 {
    let high = divide_high(multiplier, dividend);
    return (high + ((dividend - high) >> shift1)) >> shift2;
}
