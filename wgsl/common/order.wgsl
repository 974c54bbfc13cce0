// The order in which scores compete, on their stored bits: src/primitives/order.rs.

const ORDER_SINK: u32 = 0xffffffffu;

// A higher score has a higher key; -0 and +0 have the same; NaN of either sign has key 0.
fn order_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let signed_key = select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
    let key = select(signed_key, 0x80000000u, magnitude == 0u);
    return select(key, 0u, magnitude > 0x7f800000u);
}

// The score that has this key; not for the keys of NaN and sinks.
fn order_score(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}
