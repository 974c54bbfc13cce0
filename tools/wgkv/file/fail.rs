//! How the program refuses: one line, one exit code.

use wgkv::Error;
use wgkv::files::shown;

/// A message for the user and the exit code that goes with it.
#[derive(Debug)]
pub struct Fail {
    /// Exit code: 2 for bad input or arguments, 3 for no usable adapter or a lost device.
    pub code: u8,
    /// One line.
    pub message: String,
    /// Whether a device limit was in the way, so that less at a time might do.
    pub limit: bool,
}

impl Fail {
    /// Bad input or arguments.
    pub fn input(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into(), limit: false }
    }

    /// No usable adapter, or the device was lost.
    pub fn device(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into(), limit: false }
    }

    /// The same refusal, said of `place` (a file, a tensor).
    pub fn at(self, place: impl core::fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }
}

/// Text of any length on one line, control characters escaped.
pub fn readable(text: &str) -> String {
    text.split_inclusive(|_| true).map(shown).collect()
}

/// What a parser says, which may quote the file: escaped, and cut where a name fills it.
pub fn told(error: impl core::fmt::Display) -> String {
    const LONGEST: usize = 200;
    let text = error.to_string();
    let end = text.char_indices().nth(LONGEST).map(|(at, _)| at);
    end.map_or_else(|| readable(&text), |end| readable(&text[..end]) + "...")
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::DeviceLost { .. } | Error::Incomplete { .. } | Error::MissingFeature { .. } => 3,
            _ => 2,
        };
        let limit = matches!(error, Error::DeviceLimit { .. });
        let hint = if limit { " (--backend cpu has no such limit)" } else { "" };
        Self { code, message: format!("{error}{hint}"), limit }
    }
}
