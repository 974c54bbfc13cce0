//! The picture that `compress` draws.

use std::path::Path;

use crate::support::{File, Folder, noise, pair, wgkv};

fn draw(folder: &Folder, input: &Path, args: &[&str]) -> String {
    let picture = folder.path("drawn.svg");
    let name = picture.display().to_string();
    let all = [&["--backend", "cpu", "--plot", &name][..], args].concat();
    folder.run("compress", input, "packed.st", &all);
    std::fs::read_to_string(picture).expect("a picture")
}

/// Texts of an SVG file.
fn texts(svg: &str) -> Vec<&str> {
    svg.split("<text")
        .skip(1)
        .filter_map(|text| Some(text.split_once('>')?.1.split_once("</text>")?.0.trim()))
        .collect()
}

#[test]
fn compress_draws_tokens_scores_errors_and_bytes() {
    let folder = Folder::new();
    let input = folder.write("x.st", &pair([1, 2, 300, 32]).bytes());
    let svg = draw(&folder, &input, &["--keep", "0.5", "--chunk", "16"]);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let texts = texts(&svg);
    let has = |text: &str| texts.iter().any(|found| found.contains(text));
    for text in [
        "tokens that stay",
        "position, tokens",
        "layer.head",
        "0.0",
        "0.1",
        "score",
        "relative error (rms), %",
        "keys",
        "values",
        "bytes by part: 76800 before,",
        "KiB",
        "codes",
        "positions",
        "padding",
    ] {
        assert!(has(text), "{text}: {texts:?}");
    }
    // Greys alone: every colour has three equal parts.
    for colour in svg.split("=\"#").skip(1).map(|rest| &rest[..6]) {
        assert!(colour[..2] == colour[2..4] && colour[2..4] == colour[4..], "#{colour}");
    }
    // All tokens: no positions are kept, and every strip is one black box.
    let whole = draw(&folder, &input, &["--keep", "1"]);
    let black = |svg: &str| svg.matches("fill=\"#000000\"").count();
    assert!(black(&whole) < black(&svg), "{} {}", black(&whole), black(&svg));
    assert_eq!(folder.names(), ["drawn.svg", "packed.st", "x.st"]);
}

/// Few tokens, none that is packed, elements that are no numbers, more heads than strips.
#[test]
fn odd_caches_are_drawn() {
    let folder = Folder::new();
    for shape in [[1, 1, 1, 8], [2, 3, 5, 16], [1, 70, 20, 8]] {
        let input = folder.write("x.st", &pair(shape).bytes());
        let svg = draw(&folder, &input, &[]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{shape:?}");
        assert_eq!(svg.contains("the first 64 of 70 heads"), shape[1] == 70, "{shape:?}");
    }
    let mut values = noise(3, 40 * 8);
    values[13] = f32::NAN;
    values[14] = f32::INFINITY;
    let file = File::new().f32("layers.0.k", &[1, 1, 40, 8], &values);
    let input = folder.write("x.st", &file.f32("layers.0.v", &[1, 1, 40, 8], &values).bytes());
    assert!(!draw(&folder, &input, &[]).contains("NaN"));
}

/// These name their tensors `<i>.0` and `<i>.1`, and may be longer than what is in them.
#[test]
fn prompt_caches_of_mlx_lm_are_drawn() {
    let folder = Folder::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlx");
    for name in ["f16_031", "f16_032", "bf16_032"] {
        let svg = draw(&folder, &data.join(format!("{name}.safetensors")), &[]);
        assert!(texts(&svg).iter().any(|text| text.contains("tokens that stay")), "{name}");
    }
}

#[test]
fn a_place_for_no_picture_is_refused_before_any_work() {
    let folder = Folder::new();
    let input = folder.write("x.st", &pair([1, 1, 40, 8]).bytes());
    let own = folder.path("");
    let args = ["--backend", "cpu", "--plot", own.to_str().expect("a name")];
    folder.refuses("compress", &input, &args, &["directory"]);
    let none = folder.path("none/x.svg");
    let args = ["--backend", "cpu", "--plot", none.to_str().expect("a name")];
    folder.refuses("compress", &input, &args, &["none", "cannot be written"]);
    for name in ["x.png", "x.pdf", "x.st"] {
        let place = folder.path(name);
        let args = ["--backend", "cpu", "--plot", place.to_str().expect("a name")];
        folder.refuses("compress", &input, &args, &[name, "SVG"]);
    }
    if cfg!(unix) {
        for (name, word) in [("x.svg/", "no file name"), (&"n".repeat(256), "name too long")] {
            let place = folder.path(name);
            let args = ["--backend", "cpu", "--plot", place.to_str().expect("a name")];
            folder.refuses("compress", &input, &args, &[word]);
        }
    }
    let link = folder.write("y.svg", &std::fs::read(&input).expect("it is there"));
    let args = ["--backend", "cpu", "--plot", link.to_str().expect("a name")];
    folder.refuses("compress", &link, &args, &["y.svg", "input"]);
    assert!(wgkv(["compress", "--help"]).stdout.contains("--plot"));
}
