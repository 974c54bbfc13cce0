//! The codebook that the options name, or the library's own.

use std::sync::Arc;

use wgkv::layout::{CODEBOOK_ROWS, PIECE};
use wgkv::nsnquant::Codebook;

use crate::args::{Packing, Profile};
use crate::file::{Fail, FileDtype, Source};

/// Names of the two tensors of a codebook file.
const TENSORS: [&str; 2] = ["codebook_signed", "codebook_magnitude"];

/// Reads the file that `--codebook` names, or takes the built-in one.
pub fn load(packing: &Packing) -> Result<Arc<Codebook>, Fail> {
    if packing.profile == Profile::Paper {
        return Err(Fail::input("--profile paper is not there yet, compat is"));
    }
    let Some(path) = &packing.codebook else {
        return Ok(Codebook::builtin());
    };
    let mut source = Source::open(path)?;
    let mut read = |tensor| {
        let (shape, rows) = source.exactly::<f32>(tensor, FileDtype::F32, 2)?;
        if shape != [CODEBOOK_ROWS, PIECE] {
            let message = format!("has shape {shape:?}, expected [{CODEBOOK_ROWS}, {PIECE}]");
            return Err(source.fail(tensor, message));
        }
        Ok(rows)
    };
    let [signed, magnitude] = [read(TENSORS[0])?, read(TENSORS[1])?];
    let codebook =
        Codebook::new(&signed, &magnitude).map_err(|e| Fail::from(e).at(source.name()))?;
    Ok(Arc::new(codebook))
}
