//! Writes every shader of the library, in every variant, as lines of JSON: its name, the WGSL text, the
//! values of its overrides and what it binds. For compilers of WGSL other than naga (tools/dawn.mjs).

use std::io::Write;

use serde_json::json;
use wgkv::gpu::Binding;

fn main() -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (kernel, variants) in wgkv::kernels::kernels() {
        let bindings: Vec<_> = kernel
            .bindings
            .iter()
            .map(|binding| match binding {
                Binding::Read(_) => "read-only-storage",
                Binding::Write(_) => "storage",
                Binding::Constant(_) => "uniform",
            })
            .collect();
        for variant in variants {
            let overrides: serde_json::Map<_, _> = variant
                .overrides
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect();
            let constants: Vec<_> =
                variant.constants.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let shader = json!({
                "name": kernel.name,
                "constants": constants.join(" "),
                "overrides": overrides,
                "params": kernel.params.size,
                "bindings": bindings,
                "text": kernel.text(&variant),
            });
            writeln!(out, "{shader}")?;
        }
    }
    out.flush()
}
