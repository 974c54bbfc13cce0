// Rows in runs of up to RUN tokens, which do not cross blocks. Expects params.tokens, block, blocks,
// pieces (runs of a block) and the division by it; needs divide.wgsl.

const RUN: u32 = 64u;

// First token of run `run` of a row and the one after its last.
fn run_range(run: u32) -> vec2<u32> {
    let block = divide_magic(
        run, params.pieces_multiplier, params.pieces_shift1, params.pieces_shift2);
    let piece = run - block * params.pieces;
    let first = block * params.block + piece * RUN;
    let last = min(min(first + RUN, (block + 1u) * params.block), params.tokens);
    return vec2<u32>(first, max(first, last));
}
