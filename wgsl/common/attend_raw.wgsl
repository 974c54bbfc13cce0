// A tile of raw tokens, at most one a lane: first a lane is a token, then a lane is a piece of
// every `groups`-th token. Needs attend.wgsl.
//
// Wants raw_key, raw_value (tile, token, piece) -> AttendPiece and raw_position (tile, token) ->
// u32, `tile` being what they find the tile by.

const HEADS_PARTS: u32 = 1u;

var<workgroup> attend_weight: array<Real, SOFTMAX_LANES>;

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
        // Several loads at a time, since nothing else hides how long each takes.
        if (ATTEND_PIECES & 3u) == 0u {
            for (var piece = 0u; piece < ATTEND_PIECES; piece += 4u) {
                let a = raw_key(tile, own.lane, piece);
                let b = raw_key(tile, own.lane, piece + 1u);
                let c = raw_key(tile, own.lane, piece + 2u);
                let d = raw_key(tile, own.lane, piece + 3u);
                dot += attend_dot(8u * piece, a);
                dot += attend_dot(8u * piece + 8u, b);
                dot += attend_dot(8u * piece + 16u, c);
                dot += attend_dot(8u * piece + 24u, d);
            }
        } else {
            for (var piece = 0u; piece < ATTEND_PIECES; piece++) {
                dot += attend_dot(8u * piece, raw_key(tile, own.lane, piece));
            }
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
        for (; token + 3u * groups < count; token += 4u * groups) {
            let a = raw_value(tile, token, own.piece);
            let b = raw_value(tile, token + groups, own.piece);
            let c = raw_value(tile, token + 2u * groups, own.piece);
            let d = raw_value(tile, token + 3u * groups, own.piece);
            sums = attend_add(sums, attend_weight[token], a);
            sums = attend_add(sums, attend_weight[token + groups], b);
            sums = attend_add(sums, attend_weight[token + 2u * groups], c);
            sums = attend_add(sums, attend_weight[token + 3u * groups], d);
        }
        for (; token < count; token += groups) {
            sums = attend_add(sums, attend_weight[token], raw_value(tile, token, own.piece));
        }
        (*run).sums = sums;
    }
}
