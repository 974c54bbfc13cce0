// A tile of raw tokens, at most one a lane: first a lane is a token, then a lane is a piece of
// every `groups`-th token. Needs attend.wgsl.
//
// Wants raw_key, raw_value (tile, token, piece) -> AttendPiece and raw_position (tile, token) ->
// u32, `tile` being what they find the tile by.

fn raw_tile(
    own: AttendLane,
    tile: vec4<u32>,
    count: u32,
    block: AttendBlock,
    run: ptr<function, AttendRun>,
) {
    var logit = vec4<f32>(SOFTMAX_UNSEEN);
    var seen = vec4<bool>(false);
    if own.lane < count {
        var position = 0u;
        if params.attend.causal != 0u {
            position = raw_position(tile, own.lane);
        }
        seen = attend_seen(block, position);
        var dot = vec4<f32>(0.0);
        for (var piece = 0u; piece < ATTEND_PIECES; piece++) {
            dot += attend_dot(8u * piece, raw_key(tile, own.lane, piece));
        }
        logit = select(logit, attend_logit(block, dot), seen);
    }
    let step = attend_weigh(own.lane, logit, seen, run);
    attend_weight[own.lane] = step.weight;
    workgroupBarrier();
    if own.owns {
        let groups = params.attend.groups;
        var sums = (*run).sums;
        var token = own.group;
        for (; token + groups < count; token += 2u * groups) {
            let first = raw_value(tile, token, own.piece);
            let second = raw_value(tile, token + groups, own.piece);
            sums = attend_add(sums, attend_weight[token], first);
            sums = attend_add(sums, attend_weight[token + groups], second);
        }
        if token < count {
            sums = attend_add(sums, attend_weight[token], raw_value(tile, token, own.piece));
        }
        (*run).sums = sums;
    }
}
