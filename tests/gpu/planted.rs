//! The lint sees each fault that it is there for.

use std::collections::BTreeSet;

use crate::{lint, modules};

const HEAD: &str = "
struct Params { count: u32, divisor: u32, table: array<vec4<u32>, 2> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;
var<workgroup> wg_shared: array<u32, 64>;
";

/// Rules broken by a kernel of `items` and `body`.
fn broken(items: &str, body: &str) -> BTreeSet<&'static str> {
    let text = format!(
        "{HEAD}{items}
        @compute @workgroup_size(64)
        fn main(
            @builtin(local_invocation_index) lane: u32,
            @builtin(workgroup_id) group: vec3<u32>,
            @builtin(num_workgroups) groups: vec3<u32>,
        ) {{
            let word = input[lane];
            {body}
            output[lane] = word + wg_shared[0];
        }}"
    );
    rules(&text)
}

fn rules(text: &str) -> BTreeSet<&'static str> {
    let shader = modules::shader("planted", text, &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let translated = modules::to_msl(&shader).unwrap();
    lint::module(&shader).into_iter().chain(lint::msl(&translated)).map(|f| f.rule).collect()
}

#[track_caller]
fn sees(rule: &'static str, items: &str, body: &str) {
    assert_eq!(broken(items, body), BTreeSet::from([rule]), "{items}\n{body}");
}

#[track_caller]
fn passes(items: &str, body: &str) {
    assert_eq!(broken(items, body), BTreeSet::new(), "{items}\n{body}");
}

#[test]
fn a_clean_kernel_passes() {
    passes("", "wg_shared[lane] = word; workgroupBarrier();");
    passes(
        "const TABLE = array<u32, 4>(1u, 2u, 3u, 4u);",
        "wg_shared[lane] = TABLE[word & 3u]; var a: array<u32, 2>; a[0] = word; output[lane] = a[1];",
    );
}

#[test]
fn loops_without_an_end_in_sight() {
    let rule = "loop without an end in sight";
    for body in [
        "loop { if word > 3u { break; } }",
        "var i = 0u; while i < 4u { if word > 3u { i += 1u; } }",
        "for (var i = 0u; i < word; i += lane) { output[i] = i; }",
        "for (var i = 0u; i < word; i += params.divisor) { output[i] = i; }",
        "for (var i = 0u; i < 8u; i = i * 2u) { output[i] = i; }",
        "for (var i = 0u; i < word; i += 8192u) { output[i] = i; }",
        "for (var i = 0u; i < 8u; i -= 1u) { output[i] = i; }",
        "for (var i = 8u; i > 0u; i += 1u) { output[i] = i; }",
        "for (var i = 8u; i >= 0u; i -= 1u) { output[i] = i; }",
        "for (var i = 7u; i > 0u; i -= 2u) { output[i] = i; }",
        "for (var i = 0u; i < 8u; i++) { if word == i { i = 0u; } }",
        "for (var i = 0u; i < output[7]; i++) { output[7] += 2u; }",
        "var end = word; for (var i = 0u; i < end; i++) { end += 2u; }",
        "var end = word; for (var i = 0u; i < end; i++) { more(&end); }",
        "for (var i = 0u; i < 8u; ) { output[i] = i; }",
        "for (var i = 0u; ; i++) { if i == word { break; } }",
        "for (var i = 0u; word < 8u; i++) { output[i] = i; }",
        "for (var i = 0u; 0u * i < 8u; i++) { output[i] = i; }",
    ] {
        sees(rule, "fn more(end: ptr<function, u32>) { *end += 2u; }", body);
    }
    for body in [
        "for (var i = lane; i < word; i += 64u) { output[i] = i; }",
        "for (var i = lane; 2u * i + 3u < params.count; i++) { output[i] = i; }",
        "for (var i = 64u; i > 0u; i >>= 1u) { output[i] = i; }",
        "for (var i = 64u; i >= 8u; i = i >> 1u) { output[i] = i; }",
        "for (var i = params.count; i > 0u; i--) { output[i] = i; }",
        "for (var i = 0u; i < input[3]; i++) { output[i] = i; }",
        "let end = output[7]; for (var i = 0u; i < end; i++) { output[7] += 2u; }",
        "for (var i = 0u; i < 8u; i++) { for (var j = i; j < 9u; j += 4u) { output[j] = i; } }",
    ] {
        passes("", body);
    }
}

#[test]
fn workgroup_sizes() {
    for (size, right) in [(32, false), (64, true), (96, true), (100, false), (256, true)] {
        let text = format!("@compute @workgroup_size({size}) fn main() {{}}");
        assert_eq!(rules(&text).contains("workgroup size"), !right, "{size}");
    }
    assert!(rules("@compute @workgroup_size(512) fn main() {}").contains("workgroup size"));
}

#[test]
fn tests_for_nan_and_inf() {
    let value = "let x = bitcast<f32>(word);";
    sees("NaN or Inf", "", &format!("{value} if x != x {{ output[0] = 1u; }}"));
    sees("NaN or Inf", "", &format!("{value} output[0] = select(0u, 1u, x == x);"));
    sees("NaN or Inf", "", &format!("{value} var y = x; output[0] = select(0u, 1u, y != y);"));
    sees("NaN or Inf", "", &format!("{value} output[0] = select(0u, 1u, abs(x) > 3.402823e38);"));
    sees("NaN or Inf", "", &format!("{value} output[0] = select(0u, 1u, x < -3.402823e38);"));
    sees("NaN or Inf", "", "let bits = 0xff800000u; output[0] = u32(bitcast<f32>(bits) < 1.0);");
    passes("", "if (word & 0x7f800000u) == 0x7f800000u { output[0] = 1u; }");
}

#[test]
fn arrays_by_value() {
    let rule = "array by value";
    sees(
        rule,
        "fn first(a: array<u32, 4>) -> u32 { return a[0]; }",
        "var a: array<u32, 4>; output[0] = first(a);",
    );
    sees(rule, "", "let copy = wg_shared; output[0] = copy[0];");
    sees(rule, "", "var copy = wg_shared; output[0] = copy[0];");
    sees(rule, "", "var a = array<u32, 2>(1u, word); output[0] = a[0];");
    sees(
        rule,
        "struct Pair { v: array<u32, 2> } fn pair(w: u32) -> Pair { var p: Pair; p.v[0] = w; return p; }",
        "output[0] = pair(word).v[0];",
    );
    passes(
        "fn first(a: ptr<function, array<u32, 4>>) -> u32 { return (*a)[0]; }",
        "var a: array<u32, 4>; output[0] = first(&a);",
    );
}

#[test]
fn local_arrays_with_dynamic_index() {
    let rule = "dynamic index of a local array";
    sees(rule, "", "var a: array<u32, 4>; a[word & 3u] = 1u;");
    sees(rule, "", "var a: array<u32, 4>; for (var i = 0u; i < 4u; i++) { a[i] = i; }");
    sees(
        rule,
        "fn put(a: ptr<function, array<u32, 4>>, i: u32) { (*a)[i] = 1u; }",
        "var a: array<u32, 4>; put(&a, word & 3u);",
    );
}

#[test]
fn private_tables() {
    sees("private table", "var<private> table: array<u32, 4>;", "output[0] = table[0];");
    passes("var<private> seed: u32;", "seed = word; output[0] = seed;");
}

#[test]
fn integer_division() {
    sees("integer division", "", "output[0] = word / params.divisor;");
    sees("integer division", "", "output[0] = word % params.divisor;");
    sees("integer division", "", "output[0] = u32(i32(word) % i32(params.divisor));");
    sees("integer division", "", "output[0] = 4294967294u % word;");
    passes("const N = 96u / 8u;", "output[0] = N * (word >> 2u);");
    passes("", "output[0] = bitcast<u32>(bitcast<f32>(word) / 3.0);");
}

#[test]
fn unpacking_of_norms() {
    sees("unpack2x16", "", "output[0] = u32(unpack2x16unorm(word).x);");
    sees("unpack2x16", "", "output[0] = u32(unpack2x16snorm(word).x);");
    passes("", "output[0] = u32(unpack2x16float(word).x);");
}

#[test]
fn roundings_that_differ_between_devices() {
    let rule = "rounding to f16 that the device chooses";
    sees(rule, "", "output[0] = pack2x16float(vec2<f32>(bitcast<f32>(word)));");
    sees(rule, "", "output[0] = u32(quantizeToF16(bitcast<f32>(word)));");
}

#[test]
fn exponentials() {
    for call in ["exp(x)", "log(x)", "pow(x, 3.5)"] {
        sees(
            "exp2 and log2 only",
            "",
            &format!("let x = bitcast<f32>(word); output[0] = u32({call});"),
        );
    }
    passes("", "output[0] = u32(exp2(bitcast<f32>(word)));");
}

#[test]
fn vec3_in_memory() {
    let item = "@group(0) @binding(3) var<storage, read> points: array<vec3<f32>>;";
    sees("vec3 in memory", item, "output[0] = u32(points[word].x);");
    sees("vec3 in memory", "var<workgroup> wg_p: vec3<u32>;", "wg_p = vec3(word);");
    passes("", "let p = vec3(word); output[0] = p.y;");
}

#[test]
fn workgroup_memory() {
    let large = |words| format!("var<workgroup> wg_large: array<u32, {words}>;");
    let body = "wg_large[lane] = word;";
    sees("workgroup memory", &large(4096), body);
    // With the 64 words above, this fills the 16 KiB to the last byte.
    passes(&large(4096 - 64), body);
}

#[test]
fn storage_buffers() {
    let bind = |count: u32| -> (String, String) {
        (3..3 + count)
            .map(|at| {
                (
                    format!("@group(0) @binding({at}) var<storage, read> b{at}: array<u32>;\n"),
                    format!("output[{at}] = b{at}[0];"),
                )
            })
            .unzip()
    };
    let (items, body) = bind(7);
    sees("storage buffers", &items, &body);
    let (items, body) = bind(6);
    passes(&items, &body);
}

#[test]
fn bind_groups_and_entry_points() {
    let item = "@group(1) @binding(0) var<storage, read> far: array<u32>;";
    let text =
        format!("{HEAD}{item} @compute @workgroup_size(64) fn main() {{ output[0] = far[0]; }}");
    let shader = modules::shader("planted", &text, &[]).unwrap();
    assert_eq!(lint::module(&shader).first().map(|f| f.rule), Some("bind group"));
    let two = "@compute @workgroup_size(64) fn main() {} @compute @workgroup_size(64) fn more() {}";
    let module = naga::front::wgsl::parse_str(two).unwrap();
    let info = naga::valid::Validator::new(Default::default(), Default::default())
        .validate(&module)
        .unwrap();
    let shader = modules::Shader { name: "planted".to_owned(), module, info };
    assert_eq!(lint::module(&shader).first().map(|f| f.rule), Some("entry point"));
}

#[test]
fn barriers_that_some_threads_miss() {
    let rule = "barrier in divergent control flow";
    let barrier = "workgroupBarrier();";
    sees(rule, "", &format!("if lane < 32u {{ {barrier} }}"));
    sees(rule, "", &format!("if lane >= params.count {{ return; }} {barrier}"));
    sees(rule, "", &format!("if word == 0u {{ {barrier} }}"));
    sees(rule, "", &format!("for (var i = 0u; i < lane; i++) {{ {barrier} }}"));
    sees(
        rule,
        "",
        &format!(
            "for (var i = 0u; i < 4u; i++) {{ if wg_shared[0] == 0u {{ break; }} {barrier} }}"
        ),
    );
    sees(
        rule,
        "",
        &format!("for (var i = 0u; i < 4u; i++) {{ if lane == i {{ continue; }} {barrier} }}"),
    );
    sees(rule, "", &format!("var n = 4u; if lane == 0u {{ n = 5u; }} if n == 4u {{ {barrier} }}"));
    sees(rule, "", &format!("switch lane {{ case 0u: {{ {barrier} }} default: {{}} }}"));
    sees(rule, &format!("fn meet() {{ {barrier} }}"), "if lane == 0u { meet(); }");
    sees(
        rule,
        "fn odd(a: u32) -> bool { return (a & 1u) == 1u; }",
        &format!("if odd(lane) {{ {barrier} }}"),
    );
    sees(
        rule,
        "fn give(a: ptr<function, u32>, b: u32) { *a = b; }",
        &format!("var n = 0u; give(&n, lane); if n == 0u {{ {barrier} }}"),
    );
    sees(rule, "", "if lane == 0u { output[1] = workgroupUniformLoad(&wg_shared[0]); }");
    sees(rule, "", &format!("if output[0] == 0u {{ {barrier} }}"));
}

#[test]
fn barriers_that_all_threads_meet() {
    let barrier = "workgroupBarrier();";
    passes("", &format!("if params.count == 0u {{ return; }} {barrier}"));
    passes("", &format!("if group.y * groups.x + group.x >= params.count {{ return; }} {barrier}"));
    passes("", &format!("for (var i = 0u; i < params.count; i++) {{ {barrier} }}"));
    passes("", &format!("if lane == 0u {{ wg_shared[0] = 1u; }} {barrier}"));
    passes("", &format!("for (var i = lane; i < 64u; i += 64u) {{ wg_shared[i] = i; }} {barrier}"));
    passes(
        "",
        &format!(
            "let n = workgroupUniformLoad(&wg_shared[0]); for (var i = 0u; i < n; i++) {{ {barrier} }}"
        ),
    );
    passes("", &format!("let n = input[group.x]; if n == 0u {{ {barrier} }}"));
    passes("", &format!("for (var n = params.count; n > 0u; n = n >> 1u) {{ {barrier} }}"));
    passes(
        "fn part(a: u32, b: u32) -> u32 { return min(a, b); }",
        &format!("if part(group.x, params.count) == 0u {{ {barrier} }}"),
    );
}
