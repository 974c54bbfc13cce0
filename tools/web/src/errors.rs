//! How far one list of numbers is from another.

use serde_json::{Value, json};

/// Sums over elements; non-finite ones count as 0, as everywhere in the library.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    difference: f64,
    want: f64,
}

impl Errors {
    /// Adds the elements of a part.
    pub fn add(&mut self, got: impl Iterator<Item = f32>, want: impl Iterator<Item = f32>) {
        let finite = |v: f32| if v.is_finite() { f64::from(v) } else { 0.0 };
        for (got, want) in got.zip(want) {
            let (got, want) = (finite(got), finite(want));
            self.difference += (got - want) * (got - want);
            self.want += want * want;
        }
    }

    /// Norm of the difference over the norm of what was wanted; nothing where that is no number.
    pub fn relative(&self) -> Value {
        let relative =
            if self.difference == 0.0 { 0.0 } else { (self.difference / self.want).sqrt() };
        if relative.is_finite() { json!(relative) } else { Value::Null }
    }
}
