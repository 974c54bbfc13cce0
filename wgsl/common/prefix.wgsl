// Running sums over the lanes of a workgroup. Needs the override WG, the lanes, a multiple of 16 up to
// 256. To be called by all lanes together.

const PREFIX_GROUP: u32 = 16u;

var<workgroup> prefix_values: array<u32, 256>;
var<workgroup> prefix_groups: array<u32, 16>;

// The sum of the values of the lanes before this one, and the sum of all.
fn prefix_sum(value: u32, lane: u32) -> vec2<u32> {
    prefix_values[lane] = value;
    workgroupBarrier();
    let groups = WG >> 4u;
    if lane < groups {
        var sum = 0u;
        for (var i = 0u; i < PREFIX_GROUP; i++) {
            sum += prefix_values[lane * PREFIX_GROUP + i];
        }
        prefix_groups[lane] = sum;
    }
    workgroupBarrier();
    let own_group = lane >> 4u;
    var before = 0u;
    var all = 0u;
    for (var group = 0u; group < groups; group++) {
        let sum = prefix_groups[group];
        before += select(0u, sum, group < own_group);
        all += sum;
    }
    for (var i = own_group * PREFIX_GROUP; i < lane; i++) {
        before += prefix_values[i];
    }
    workgroupBarrier();
    return vec2<u32>(before, all);
}
