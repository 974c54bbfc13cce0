//! A case by its name, which is all that it takes to run it again.

use serde_json::{Value, json};

use super::checks::Outcome;
use super::run::{Origin, Run};
use super::stages::{STAGES, Stage};
use crate::error::{Error, Result};
use crate::gpu::Context;

/// One case of one stage.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub(super) stage: &'static Stage,
    pub(super) origin: Origin,
    pub(super) seed: u64,
    pub(super) size: usize,
    /// Whether it only looks for a smaller failure than one that was found.
    pub(super) search: bool,
}

impl PartialEq for Case {
    fn eq(&self, other: &Self) -> bool {
        let key = |case: &Self| (case.stage.name, case.origin, case.seed, case.size);
        key(self) == key(other)
    }
}

/// What the files of cases say that they are.
const FORMAT: &str = "wgkv-case";

impl Case {
    /// Name of the stage, such as `nestedkv/anchor`.
    pub fn stage(&self) -> &'static str {
        self.stage.name
    }

    /// The case in a few words.
    pub fn name(&self) -> String {
        match self.origin {
            Origin::Reference(number) => format!("{} reference {number}", self.stage.name),
            Origin::Cover(number) => format!("{} variant {number}", self.stage.name),
            Origin::Property => {
                format!("{} seed {} size {}", self.stage.name, self.seed, self.size)
            }
        }
    }

    /// Runs the case: records, submits to the context's queue and awaits the answers. The caller
    /// polls the device meanwhile (see [`super::wait`]), or the browser does.
    pub async fn run(&self, context: &Context) -> Outcome {
        let mut run = Run::new(context, self.origin, self.seed, self.size);
        let ended = (self.stage.run)(&mut run).await;
        run.checks.end(ended)
    }

    /// The case as JSON, for a file that runs it again.
    pub fn to_json(&self) -> String {
        let (origin, number) = match self.origin {
            Origin::Reference(number) => ("reference", number),
            Origin::Cover(number) => ("variant", number),
            Origin::Property => ("property", 0),
        };
        let object = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "stage": self.stage.name,
            "case": origin,
            "number": number,
            "seed": self.seed,
            "size": self.size,
        });
        object.to_string()
    }

    /// Reads what [`Case::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::File`] for another text, an unknown stage, or a number that the stage has no case
    /// for.
    pub fn from_json(text: &str) -> Result<Self> {
        let fail = |reason: String| Error::File { reason };
        let object: Value =
            serde_json::from_str(text).map_err(|e| fail(format!("a case is JSON: {e}")))?;
        if object["format"] != FORMAT {
            return Err(fail(format!("a case has \"format\": \"{FORMAT}\"")));
        }
        let name = object["stage"].as_str().unwrap_or_default();
        let stage = STAGES.iter().find(|stage| stage.name == name).ok_or_else(|| {
            let start: String = name.chars().take(80).collect();
            fail(format!("there is no stage {start:?}"))
        })?;
        let number = |key: &str, max: u64| {
            object[key]
                .as_u64()
                .filter(|n| *n <= max)
                .ok_or_else(|| fail(format!("{key} is a number of at most {max}")))
        };
        let at = number("number", u64::from(u32::MAX))? as usize;
        let origin = match object["case"].as_str() {
            Some("reference") if at < stage.references => Origin::Reference(at),
            Some("variant") if at < stage.covers => Origin::Cover(at),
            Some("property") => Origin::Property,
            _ => return Err(fail(format!("{name} has no such case"))),
        };
        let (seed, size) = (number("seed", u64::MAX)?, number("size", 100)? as usize);
        Ok(Self { stage, origin, seed, size, search: false })
    }

    /// A smaller one of the same kind, if it can get smaller.
    pub(super) fn smaller(&self) -> Option<Self> {
        let size = self.size / 2;
        (self.origin == Origin::Property && size > 0).then_some(Self {
            size,
            search: true,
            ..*self
        })
    }
}
