//! What the engine serves: two prompts that begin alike, a batch that decodes, a draft that is
//! rejected, a fork, a pause in a file.

use std::io::Write;

use wgkv::gpu::Context;

use super::engine::{Answer, Engine};
use super::model::Model;

/// Runs it all with so many steps of decoding, and prints the bytes at each stage.
pub fn run(context: &Context, steps: u32, out: &mut dyn Write) -> Answer<()> {
    let model = Model { layers: 3, query_heads: 6, kv_heads: 2, head_dim: 64, seed: 1 };
    let mut engine = Engine::new(context, model)?;
    Engine::header(out)?;

    // Two prompts with one beginning: the second starts as a fork of the first, and shares its pages.
    let first = engine.begin();
    engine.go(&[(first, 256)], 1, true)?;
    let second = engine.fork(first)?;
    engine.report(out, "a prefix of 256, twice")?;
    for (member, story, tokens) in [(first, 2, 100), (second, 3, 150)] {
        // A prompt comes in pieces of any size.
        engine.go(&[(member, 64)], story, true)?;
        engine.go(&[(member, tokens - 64)], story, true)?;
    }
    engine.report(out, "prompts of 356 and 406")?;

    // Heads get budgets of their own; what stays is packed.
    engine.evict(first, 160)?;
    engine.evict(second, 200)?;
    engine.report(out, "160 and 200 a head, packed")?;

    let mut batch = vec![first, second];
    for step in 0..steps {
        let members: Vec<(usize, u32)> = batch.iter().map(|member| (*member, 1)).collect();
        engine.go(&members, 10, false)?;
        if step == steps / 4 {
            // A draft of five tokens, of which one is accepted.
            engine.go(&[(first, 5)], 11, false)?;
            engine.trim(first, 4)?;
            engine.report(out, "a draft rejected")?;
        }
        if step == steps / 2 {
            batch.push(engine.fork(first)?);
            engine.report(out, "the first forked")?;
        }
        if step == 3 * steps / 4 {
            let bytes = engine.pause()?;
            engine.report(out, &format!("from a file of {bytes}"))?;
        }
    }
    engine.report(out, &format!("{steps} steps decoded"))?;
    writeln!(out, "outputs differ from the CPU path's by at most {:.1e}", engine.worst())?;
    for _ in batch {
        engine.free(0)?;
    }
    engine.shrink()?;
    match engine.device_bytes() {
        0 => Ok(()),
        held => Err(format!("{held} bytes are left behind").into()),
    }
}
