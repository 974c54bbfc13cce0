//! `inspect`: what a file holds.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wgkv::files::PromptCache;

use crate::args::{Common, InspectArgs};
use crate::file::{Fail, Source, readable, shown};
use crate::layers::{Kind, layer_tensor, no_layer};
use crate::report::{print, table};

/// Prints a table of the tensors, from the header alone.
pub fn run(args: &InspectArgs, common: &Common) -> Result<(), Fail> {
    let source = Source::open(&args.input)?;
    let header = source.header();
    if header.tensors.is_empty() {
        return Err(Fail::input("holds no tensors").at(source.name()));
    }
    for (name, entry) in &header.tensors {
        let floats = matches!(layer_tensor(name), Some((_, "k" | "v" | "q")));
        if floats && !entry.dtype.is_float() {
            let message = format!("has dtype {}, expected F32, F16 or BF16", entry.dtype.name());
            return Err(source.fail(name, message));
        }
    }
    let layers: BTreeSet<u32> =
        header.tensors.keys().filter_map(|name| Some(layer_tensor(name)?.0)).collect();
    let select = common.layers.iter().flatten();
    if let Some(layer) = select.into_iter().find(|layer| !layers.contains(layer)) {
        return Err(no_layer(&source, *layer, layers.iter()));
    }
    let kind = Kind::of(header);
    let classes = PromptCache::classes(header);
    let mlx = classes.is_some()
        || header
            .tensors
            .keys()
            .any(|name| !name.starts_with("layers.") && layer_tensor(name).is_some());
    let words = if mlx { "an mlx-lm prompt cache" } else { kind.words() };
    let wanted = |name: &str| match (&common.layers, layer_tensor(name)) {
        (Some(list), Some((layer, _))) => list.contains(&layer),
        _ => true,
    };
    let mut names: Vec<&String> = header.tensors.keys().filter(|name| wanted(name)).collect();
    names.sort_by_key(|name| (layer_tensor(name).map(|(layer, _)| layer), *name));
    let detail = (kind == Kind::Packed).then(|| crate::packed::summary(header)).flatten();

    if common.json {
        let tensors: Vec<Value> = names
            .iter()
            .map(|&name| {
                let entry = &header.tensors[name];
                json!({
                    "name": name,
                    "dtype": entry.dtype.name(),
                    "shape": entry.shape,
                    "bytes": entry.end - entry.begin,
                })
            })
            .collect();
        let object = json!({
            "file": source.name(),
            "bytes": source.bytes(),
            "kind": words,
            "metadata": header.metadata,
            "tensors": tensors,
            "bits_per_element": detail,
        });
        return print(&object.to_string());
    }
    print(&format!("{}: {words}, {} bytes", source.name(), source.bytes()))?;
    for (layer, class) in classes.iter().flat_map(|(_, classes)| classes.iter().enumerate()) {
        let tokens = source.told(layer as u32).map(|tokens| format!(" of {tokens} tokens"));
        print(&format!("  layer {layer}: {}{}", shown(class), tokens.unwrap_or_default()))?;
    }
    for (key, value) in &header.metadata {
        print(&format!("  {} = {}", shown(key), readable(value)))?;
    }
    if let Some(bits) = detail {
        print(&format!("  {bits:.3} bits per element"))?;
    }
    let mut rows = vec![["tensor", "dtype", "shape", "bytes"].map(String::from).to_vec()];
    for name in names {
        let entry = &header.tensors[name];
        rows.push(vec![
            shown(name),
            entry.dtype.name().into(),
            format!("{:?}", entry.shape),
            (entry.end - entry.begin).to_string(),
        ]);
    }
    for line in table(&rows) {
        print(&line)?;
    }
    Ok(())
}
