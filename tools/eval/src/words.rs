//! Text to tokens and back, by what a model's files say.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use serde_json::Value as Json;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use crate::weights::text;

/// What stands for a space in SentencePiece's tokens.
const SPACE: &str = "\u{2581}";

/// Kinds of tokens in GGUF files.
const NORMAL: u32 = 1;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;

/// How a question is put to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chat {
    /// ChatML.
    Marked,
    /// Gemma's turns.
    Turns,
    /// As it is: the model was not trained to answer.
    Plain,
}

impl Chat {
    fn of(template: &str) -> Self {
        if template.contains("<|im_start|>") {
            Self::Marked
        } else if template.contains("<start_of_turn>") {
            Self::Turns
        } else {
            Self::Plain
        }
    }
}

/// A tokenizer.
#[derive(Debug)]
pub struct Words {
    tokenizer: Tokenizer,
    ends: Vec<u32>,
    chat: Chat,
}

impl Words {
    /// Reads the tokenizer of a GGUF file, or `tokenizer.json` of a folder.
    ///
    /// # Errors
    /// For a file without one, and for one whose way to cut texts is not known here.
    pub fn read(path: &Path) -> Result<Self> {
        let found = if path.is_dir() { Self::folder(path) } else { Self::gguf(path) };
        found.with_context(|| path.display().to_string())
    }

    fn gguf(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let tokenizer = match text(&content, "tokenizer.ggml.model")?.as_str() {
            "gpt2" => merges(&content)?,
            "llama" => pieces(&content)?,
            other => bail!("tokenizers of the kind {other} are not known"),
        };
        let mut ends = Vec::new();
        for name in ["eos_token_id", "eot_token_id"] {
            if let Some(token) = content.metadata.get(&format!("tokenizer.ggml.{name}")) {
                ends.push(token.to_u32()?);
            }
        }
        let template = text(&content, "tokenizer.chat_template").unwrap_or_default();
        Ok(Self { tokenizer, ends, chat: Chat::of(&template) })
    }

    fn folder(path: &Path) -> Result<Self> {
        let tokenizer = Tokenizer::from_file(path.join("tokenizer.json"));
        let mut tokenizer = tokenizer.map_err(|fault| anyhow!(fault))?;
        tokenizer.with_truncation(None).map_err(|fault| anyhow!(fault))?;
        tokenizer.with_padding(None);
        let json = |name: &str| -> Result<Json> {
            match std::fs::read(path.join(name)) {
                Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
                Err(_) => Ok(Json::Null),
            }
        };
        let ends = match json("config.json")?.get("eos_token_id") {
            Some(Json::Array(tokens)) => tokens.iter().filter_map(Json::as_u64).collect(),
            Some(token) => token.as_u64().into_iter().collect(),
            None => Vec::new(),
        };
        let ends = ends.into_iter().map(u32::try_from).collect::<Result<_, _>>()?;
        let template = match std::fs::read_to_string(path.join("chat_template.jinja")) {
            Ok(template) => template,
            Err(_) => json("tokenizer_config.json")?
                .get("chat_template")
                .map_or_else(String::new, Json::to_string),
        };
        Ok(Self { tokenizer, ends, chat: Chat::of(&template) })
    }

    /// Tokens of a text, with those before it that the model asks for.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, true).map_err(|fault| anyhow!(fault))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens that the model asks for before a text.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn before(&self) -> Result<usize> {
        Ok(self.encode("")?.len())
    }

    /// The text of tokens, without control tokens.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|fault| anyhow!(fault))
    }

    /// Tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// A question in the format that the model was trained to answer.
    pub fn chat(&self, question: &str) -> String {
        match self.chat {
            Chat::Marked => format!(
                "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n\
                 <|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            ),
            Chat::Turns => {
                format!("<start_of_turn>user\n{question}<end_of_turn>\n<start_of_turn>model\n")
            }
            Chat::Plain => question.to_owned(),
        }
    }
}

/// A tokenizer of bytes and merges.
fn merges(content: &Content) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_gguf(content)?;
    match text(content, "tokenizer.ggml.pre")?.as_str() {
        // Candle takes it for GPT-2's, which keeps digits together.
        "smollm" => {
            let bytes = ByteLevel::new(false, true, true);
            let pieces = Sequence::new(vec![Digits::new(true).into(), bytes.into()]);
            tokenizer.with_pre_tokenizer(Some(pieces));
        }
        "qwen2" | "llama3" => {}
        other => bail!("texts cut in the way of {other} are not known"),
    }
    Ok(tokenizer)
}

/// A tokenizer of the SentencePiece kind: two neighbours become one token, the pair whose token has the
/// greatest score first; what is no token goes byte by byte.
fn pieces(content: &Content) -> Result<Tokenizer> {
    let get = |key: &str| {
        let key = format!("tokenizer.ggml.{key}");
        content.metadata.get(&key).with_context(|| format!("the model has no {key}"))
    };
    let tokens = get("tokens")?.to_vec()?;
    let tokens = tokens.iter().map(|token| token.to_string()).collect::<Result<Vec<_>, _>>()?;
    let scores = get("scores")?.to_vec()?;
    let scores = scores.iter().map(|score| score.to_f32()).collect::<Result<Vec<_>, _>>()?;
    let kinds = get("token_type")?.to_vec()?;
    let kinds = kinds.iter().map(kind).collect::<Result<Vec<_>>>()?;
    ensure!(
        tokens.len() == scores.len() && tokens.len() == kinds.len(),
        "tokens, their scores and their kinds are not equally many"
    );
    let flag = |key: &str| get(key).and_then(|flag| Ok(flag.to_bool()?)).unwrap_or(false);
    let token = |key: &str| -> Result<(u32, String)> {
        let token = get(key)?.to_u32()?;
        let text = tokens.get(token as usize).with_context(|| format!("no token {token}"))?;
        Ok((token, (*text).clone()))
    };
    let all: Vec<(&str, f32, u32)> =
        (0..tokens.len()).map(|at| (tokens[at].as_str(), scores[at], kinds[at])).collect();
    let mut tokenizer =
        sentence_piece(&all, &token("unknown_token_id")?.1, flag("add_space_prefix"))?;
    if flag("add_bos_token") {
        let (number, begin) = token("bos_token_id")?;
        let template = TemplateProcessing::builder()
            .try_single(vec![begin.clone(), "$0".to_owned()])
            .map_err(|fault| anyhow!(fault))?
            .special_tokens(vec![(begin, number)])
            .build()?;
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

/// Kinds are signed in some files and not in others.
fn kind(value: &candle_core::quantized::gguf_file::Value) -> Result<u32> {
    Ok(value.to_u32().or_else(|_| value.to_i32().map(|kind| kind as u32))?)
}

/// A tokenizer of tokens with their scores and kinds.
fn sentence_piece(tokens: &[(&str, f32, u32)], unknown: &str, prefix: bool) -> Result<Tokenizer> {
    let numbers: Vocab =
        (0..).zip(tokens).map(|(number, token)| (token.0.to_owned(), number)).collect();
    let normal = |text: &str| -> Option<f32> {
        let (_, score, kind) = tokens[*numbers.get(text)? as usize];
        (kind == NORMAL).then_some(score)
    };
    let mut merges = Vec::new();
    for (text, score, _) in tokens.iter().filter(|token| token.2 == NORMAL) {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if normal(left).is_some() && normal(right).is_some() {
                merges.push((*score, left.to_owned(), right.to_owned()));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges = merges.into_iter().map(|(_, left, right)| (left, right)).collect();
    let model = BPE::builder()
        .vocab_and_merges(numbers.clone(), merges)
        .unk_token(unknown.to_owned())
        .fuse_unk(true)
        .byte_fallback(true)
        .build()
        .map_err(|fault| anyhow!(fault))?;
    let mut tokenizer = Tokenizer::new(model);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        Replace::new(SPACE, " ").map_err(|fault| anyhow!(fault))?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if prefix {
        normalizers.push(Prepend::new(" ".to_owned()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    normalizers.push(Replace::new(" ", SPACE).map_err(|fault| anyhow!(fault))?.into());
    let normalizers = Some(Normalizers::new(normalizers));
    tokenizer.with_normalizer(normalizers).map_err(|fault| anyhow!(fault))?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    let added = |kind: u32| {
        let of_kind = tokens.iter().filter(move |token| token.2 == kind);
        of_kind.map(move |token| AddedToken::from(token.0, kind == CONTROL).normalized(false))
    };
    tokenizer.add_special_tokens(added(CONTROL)).map_err(|fault| anyhow!(fault))?;
    tokenizer.add_tokens(added(USER_DEFINED)).map_err(|fault| anyhow!(fault))?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<(String, f32, u32)> {
        let mut words: Vec<_> =
            [("<unk>", 2), ("<end>", CONTROL), ("\n\n", USER_DEFINED), ("  ", USER_DEFINED)]
                .map(|(text, kind)| (text.to_owned(), -1000.0, kind))
                .into();
        words.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), -1000.0, 6)));
        let texts = ["ab", "bc", "\u{2581}a", "abc", "a", "b", "c", SPACE];
        words.extend((0..).zip(texts).map(|(at, text)| (text.to_owned(), -(at as f32), NORMAL)));
        words
    }

    fn tokenizer(prefix: bool) -> Tokenizer {
        let words = words();
        let words: Vec<_> =
            words.iter().map(|(text, score, kind)| (&text[..], *score, *kind)).collect();
        sentence_piece(&words, "<unk>", prefix).unwrap()
    }

    #[test]
    fn the_pair_of_the_greatest_score_becomes_one_token_first() {
        let tokenizer = tokenizer(false);
        for (text, tokens) in [
            ("abc", &["abc"][..]),
            ("bcab", &["bc", "ab"]),
            ("aabbcc", &["a", "ab", "bc", "c"]),
            // ab stands before a space and its a.
            ("c ab a", &["c", SPACE, "ab", "\u{2581}a"]),
            ("a  b", &["a", "  ", "b"]),
            ("a\n\n\nb", &["a", "\n\n", "<0x0A>", "b"]),
            ("\u{e9}<end>a", &["<0xC3>", "<0xA9>", "<end>", "a"]),
        ] {
            let encoding = tokenizer.encode(text, false).unwrap();
            assert_eq!(encoding.get_tokens(), tokens, "{text:?}");
            let back = tokenizer.decode(encoding.get_ids(), false).unwrap();
            assert_eq!(back, text);
        }
        let encoding = tokenizer.encode("a<end>", false).unwrap();
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "a");
    }

    #[test]
    fn a_space_may_stand_before_a_text() {
        let tokenizer = tokenizer(true);
        let encoding = tokenizer.encode("a b", false).unwrap();
        assert_eq!(encoding.get_tokens(), ["\u{2581}a", SPACE, "b"]);
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), "a b");
    }
}
