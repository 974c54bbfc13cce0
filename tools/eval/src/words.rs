//! Text to tokens and back, by what a GGUF file says.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

/// A tokenizer of bytes and merges.
#[derive(Debug)]
pub struct Words {
    tokenizer: Tokenizer,
    end: u32,
}

impl Words {
    /// Reads the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// For a file without one, and for one whose way to cut texts is not known here.
    pub fn read(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let content = Content::read(&mut file)?;
        let get = |key: &str| {
            let key = format!("tokenizer.ggml.{key}");
            content.metadata.get(&key).with_context(|| format!("the model has no {key}"))
        };
        let mut tokenizer = Tokenizer::from_gguf(&content)?;
        match get("pre")?.to_string()?.as_str() {
            // Candle takes it for GPT-2's, which keeps digits together.
            "smollm" => {
                let bytes = ByteLevel::new(false, true, true);
                let pieces = Sequence::new(vec![Digits::new(true).into(), bytes.into()]);
                tokenizer.with_pre_tokenizer(Some(pieces));
            }
            "qwen2" | "llama3" => {}
            other => bail!("texts cut in the way of {other} are not known"),
        }
        Ok(Self { tokenizer, end: get("eos_token_id")?.to_u32()? })
    }

    /// Tokens of a text, none added.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false).map_err(|fault| anyhow!(fault))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without control tokens.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|fault| anyhow!(fault))
    }

    /// The token that ends an answer.
    pub fn end(&self) -> u32 {
        self.end
    }
}
