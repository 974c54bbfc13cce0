//! The list of operations of a replay, read and checked before anything is done.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::file::{Fail, shown, told};

/// Name of the cache that a replay starts with.
pub const MAIN: &str = "main";

/// Largest list that is read, in bytes.
const MAX_BYTES: u64 = 1 << 26;

/// Most steps of a list.
const MAX_STEPS: usize = 100_000;

/// Most bytes of keys and values that all steps together write.
const MAX_WRITTEN: u64 = 1 << 32;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes the next unread rows.
    Append(usize),
    /// Drops the last rows.
    Trim(usize),
    /// Makes a second cache of the one in use.
    Fork(String),
    /// Goes on with another cache.
    Use(String),
    /// Gives a cache back.
    Free(String),
}

impl Op {
    /// The operation's name in the file.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Append(_) => "append",
            Self::Trim(_) => "trim",
            Self::Fork(_) => "fork",
            Self::Use(_) => "use",
            Self::Free(_) => "free",
        }
    }

    /// What it is said of: a count or a name.
    pub fn value(&self) -> Value {
        match self {
            Self::Append(n) | Self::Trim(n) => Value::from(*n),
            Self::Fork(name) | Self::Use(name) | Self::Free(name) => Value::from(name.clone()),
        }
    }
}

/// Reads a list of operations and checks that every step can be done with so many tokens, of so many
/// bytes as they are written.
pub fn read(path: &Path, tokens: usize, token_bytes: u64) -> Result<Vec<Op>, Fail> {
    let name = shown(&path.display().to_string());
    load(path)
        .and_then(|text| parse(&text))
        .and_then(|ops| check(&ops, tokens, token_bytes).map(|()| ops))
        .map_err(|why| Fail::input(why).at(name))
}

fn load(path: &Path) -> Result<String, String> {
    let broken = |e: std::io::Error| format!("cannot be read: {}", crate::file::said(&e));
    // A pipe would block in open, a device never ends: look before opening.
    let kind = std::fs::metadata(path).map_err(broken)?;
    if !kind.is_file() {
        return Err("is no regular file, expected a JSON list".into());
    }
    if kind.len() > MAX_BYTES {
        return Err(format!("holds {} bytes, more than {MAX_BYTES}", kind.len()));
    }
    let bytes = std::fs::read(path).map_err(broken)?;
    String::from_utf8(bytes).map_err(|_| "is no JSON text".into())
}

fn parse(text: &str) -> Result<Vec<Op>, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| format!("is no JSON: {}", told(e)))?;
    let Value::Array(steps) = value else {
        return Err("is no JSON list".into());
    };
    steps
        .iter()
        .enumerate()
        .map(|(step, value)| one(value).map_err(|why| format!("step {step}: {why}")))
        .collect()
}

fn one(value: &Value) -> Result<Op, String> {
    let object = value.as_object().filter(|object| object.len() == 1);
    let Some((verb, value)) = object.and_then(|object| object.iter().next()) else {
        return Err("is no object of one entry, as in {\"append\": 5}".into());
    };
    let count = || {
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| format!("{verb} is {}, expected a count of tokens", told(value)))
    };
    let name = || {
        value
            .as_str()
            .map(str::to_string)
            .ok_or_else(|| format!("{verb} is {}, expected a name", told(value)))
    };
    match verb.as_str() {
        "append" => count().map(Op::Append),
        "trim" => count().map(Op::Trim),
        "fork" => name().map(Op::Fork),
        "use" => name().map(Op::Use),
        "free" => name().map(Op::Free),
        other => {
            let other = shown(other);
            Err(format!("{other} is no operation, expected append, trim, fork, use or free"))
        }
    }
}

/// Walks through the steps with names and counts alone.
fn check(ops: &[Op], tokens: usize, token_bytes: u64) -> Result<(), String> {
    if ops.len() > MAX_STEPS {
        return Err(format!("holds {} steps, more than {MAX_STEPS}", ops.len()));
    }
    // Tokens of each cache.
    let mut there = BTreeMap::from([(MAIN, 0usize)]);
    let mut current = Some(MAIN);
    let (mut read, mut written) = (0usize, 0u64);
    for (step, op) in ops.iter().enumerate() {
        let fail = |why: String| Err(format!("step {step}: {why}"));
        let missing = |name: &str| format!("there is no cache named {}", shown(name));
        if current.is_none() && !matches!(op, Op::Use(_) | Op::Free(_)) {
            return fail("the cache in use was freed".into());
        }
        let held = current.and_then(|name| there.get(name)).copied().unwrap_or(0);
        match op {
            Op::Append(n) => {
                if *n > tokens - read {
                    return fail(format!("append of {n} tokens, {} are unread", tokens - read));
                }
                read += n;
                there.extend(current.map(|name| (name, held + n)));
            }
            Op::Trim(n) => there.extend(current.map(|name| (name, held.saturating_sub(*n)))),
            Op::Fork(name) => {
                if there.insert(name, held).is_some() {
                    return fail(format!("there is a cache named {} already", shown(name)));
                }
            }
            Op::Use(name) => {
                if !there.contains_key(name.as_str()) {
                    return fail(missing(name));
                }
                current = Some(name);
            }
            Op::Free(name) => {
                if there.remove(name.as_str()).is_none() {
                    return fail(missing(name));
                }
                current = current.filter(|current| current != name);
            }
        }
        // A step keeps no more in memory than it writes: all that the cache in use holds.
        let held = current.and_then(|name| there.get(name)).copied().unwrap_or(0);
        written = written.saturating_add((held as u64).saturating_mul(token_bytes));
        if written > MAX_WRITTEN {
            return fail(format!(
                "this and the steps before write {written} bytes of keys and values, more than \
                 {MAX_WRITTEN}: each writes all that the cache in use holds"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, rows: usize) -> String {
        parse(text).and_then(|ops| check(&ops, rows, 1)).unwrap_err()
    }

    #[test]
    fn reads_every_operation() {
        let text = r#"[{"append": 3}, {"fork": "a"}, {"use": "a"}, {"trim": 9}, {"free": "main"}]"#;
        let ops = parse(text).unwrap();
        let verbs: Vec<_> = ops.iter().map(Op::verb).collect();
        assert_eq!(verbs, ["append", "fork", "use", "trim", "free"]);
        assert_eq!(check(&ops, 3, 1), Ok(()));
    }

    #[test]
    fn refuses_what_cannot_be_done() {
        for (text, why) in [
            ("{}", "is no JSON list"),
            ("[", "is no JSON: "),
            ("[1]", "step 0: is no object of one entry"),
            (r#"[{"append": 1, "trim": 1}]"#, "step 0: is no object of one entry"),
            (r#"[{"append": -1}]"#, "step 0: append is -1"),
            (r#"[{"append": 1.5}]"#, "step 0: append is 1.5"),
            (r#"[{"append": "x"}]"#, "step 0: append is \"x\""),
            (r#"[{"fork": 1}]"#, "step 0: fork is 1"),
            (r#"[{"grow": 1}]"#, "step 0: grow is no operation"),
            (r#"[{"append": 4}, {"append": 7}]"#, "step 1: append of 7 tokens, 6 are unread"),
            (r#"[{"use": "a"}]"#, "step 0: there is no cache named a"),
            (r#"[{"fork": "main"}]"#, "step 0: there is a cache named main already"),
            (r#"[{"free": "main"}, {"append": 1}]"#, "step 1: the cache in use was freed"),
        ] {
            let got = refused(text, 10);
            assert!(got.starts_with(why), "{text}: {got}");
        }
    }

    #[test]
    fn refuses_more_steps_and_bytes_than_it_would_hold() {
        let mut ops = vec![Op::Append(1000)];
        ops.extend((0..15).map(|i| Op::Fork(i.to_string())));
        let token_bytes = MAX_WRITTEN / 16_000;
        assert_eq!(check(&ops, 1000, token_bytes), Ok(()));
        // Nothing is written of an empty cache.
        ops.extend([Op::Trim(1000), Op::Use("0".into())]);
        let why = check(&ops, 1000, token_bytes).unwrap_err();
        assert!(why.starts_with("step 17: this and the steps before write 456"), "{why}");
        ops.truncate(17);
        assert_eq!(check(&ops, 1000, token_bytes), Ok(()));
        let many = vec![Op::Append(0); MAX_STEPS + 1];
        assert_eq!(check(&many, 0, 1).unwrap_err(), "holds 100001 steps, more than 100000");
    }
}
