//! `replay`: appends, trims and forks on a packed cache, step by step.

use crate::args::{Common, ReplayArgs};
use crate::engine::Engine;
use crate::file::{Fail, Output, Source};
use crate::layers::{Kind, Pair, layers, want};

/// Runs the operations and writes what an engine would fetch after each.
pub fn run(args: &ReplayArgs, common: &Common) -> Result<(), Fail> {
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Dense], "keys and values")?;
    let output = Output::create(&args.out.output)?;
    for (index, names) in layers(&source, common.layers.as_deref())? {
        Pair::read(&mut source, index, &names)?;
    }
    let _engine = Engine::open(common)?;
    drop(output);
    Err(Fail::input("replay is not there yet"))
}
