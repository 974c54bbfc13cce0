//! What to choose, and what each choice costs: in loss, in bytes, in time.
//!
//! The defaults are those that did best in what was measured; whoever has no reason to choose takes
//! [`Preset::default`](crate::layout::Preset) and evicts nothing.
//!
//! # Bits
//!
//! A [`Preset`](crate::layout::Preset) names its bits for an element of a packed row of 64 channels or
//! more, scales and means counted; with more channels a head it takes less:
//!
//! ```
//! use wgkv::layout::Preset;
//!
//! # fn main() -> wgkv::Result<()> {
//! let shown = |channels| -> wgkv::Result<String> {
//!     let bits = Preset::ALL.map(|(_, preset)| preset.bits_per_element(channels, channels));
//!     bits.into_iter().map(|bits| Ok(format!(" {:.2}", bits?))).collect()
//! };
//! assert_eq!(shown(64)?, " 1.21 1.71 2.21 2.71 3.21 4.21");
//! assert_eq!(shown(128)?, " 1.14 1.64 2.14 2.64 3.14 4.14");
//! assert_eq!(Preset::for_bits(3.0)?, Preset::BITS_2_75);
//! # Ok(())
//! # }
//! ```
//!
//! What they cost SmolLM2-135M-Instruct (30 layers, 3 KV heads of 64 channels), against an f16 cache,
//! with every token behind the frontier packed; `copy` is the perplexity of a text's second telling:
//!
//! | preset | keys, values | packed rows, of f16 | perplexity of three texts | copy |
//! |---|---|---|---|---|
//! | [`BITS_1_25`](crate::layout::Preset::BITS_1_25), 64 raw rows | 1, 1 bits | 1 / 13.2 | +11.6 ±1.1 % | x 6.5 |
//! | [`BITS_1_75`](crate::layout::Preset::BITS_1_75) | 2, 1 bits | 1 / 9.4 | +5.4 ±0.7 % | +59 % |
//! | [`BITS_2_25`](crate::layout::Preset::BITS_2_25) | 2, 2 bits | 1 / 7.2 | +3.1 ±0.5 % | +37 % |
//! | [`BITS_2_75`](crate::layout::Preset::BITS_2_75), the default | 3, 2 bits | 1 / 5.9 | +1.2 ±0.4 % | +7.0 % |
//! | [`BITS_3_25`](crate::layout::Preset::BITS_3_25) | 4, 2 bits | 1 / 5.0 | +0.6 ±0.2 % | +3.2 % |
//! | [`BITS_4_25`](crate::layout::Preset::BITS_4_25) | 4, 4 bits | 1 / 3.8 | +0.1 ±0.1 % | +1.7 % |
//! | [`Profile::Paper`](crate::layout::Profile::Paper), 2.4 with scales and means | 2, 2 bits | 1 / 6.7 | +5.7 ±0.7 % | |
//! | the method as described ([`Profile::Compat`](crate::layout::Profile::Compat)), 2.75 with scales and means | 2, 2 bits | 1 / 5.8 | +5.3 % | +80 % |
//! | the same with nothing raw | 2, 2 bits | 1 / 5.8 | +14.5 % | +53 % |
//!
//! ```sh
//! cargo run --manifest-path tools/eval/Cargo.toml -- compare --backend gpu --texts alice,lcet10,gpl3,copy \
//!     tuned-k2v2 tuned-k3v2-scaled tuned-k4v4 paper-k2v2 compat-k2v2 compat-k2v2@s0w0
//! cargo run --manifest-path tools/eval/Cargo.toml -- compare --texts alice,lcet10,gpl3,copy \
//!     tuned-k1v1-scaled@w64 tuned-k2v1-scaled tuned-k4v2-scaled
//! cargo run --manifest-path tools/eval/Cargo.toml -- compare --texts copy tuned-k4v4-scaled
//! ```
//!
//! Without a key scale, which every preset has, are the row of 2, 2 bits and the texts of 4, 4 bits: it makes no
//! difference beyond the noise on this model, but Gemma 3 270M pays +2.7 ±0.6 % for the default without one, and
//! +1.2 ±0.4 % with it (`compare --model gemma3 decoded-tuned-k3v2-scaled decoded-tuned-k3v2`). On that model, as
//! decoded rows, the
//! default costs +1.2 ±0.4 % and +2.8 % on the copy test, 4, 4 bits +0.2 ±0.2 %, 2, 2 bits +3.6 ±0.6 %, and
//! 1, 1 bits without a key scale make it useless (perplexity x 2.5).
//!
//! Keys keep their norm. Unbiased keys ([`Gain`](crate::layout::Gain)) cost more on text where bits are few
//! (+4.2 % with 2, 2 bits) and less in the copy test (+4.2 % with 3, 2 bits, +24 % with 2, 2 bits), as decoded rows.
//!
//! `tools/eval/README.md` says how that was measured, with standard errors, and has what has been
//! measured since. Loss in perplexity on plain text falls fast with bits; what a model must find again
//! word by word (the copy test) costs more than that, so take a preset more for such work.
//!
//! Keys carry most of the loss: a further bit goes to keys first. Values at 1 bit and keys at 1 bit
//! are for what would not fit otherwise.
//!
//! # Raw rows
//!
//! Attention leans on the first tokens and on the newest ones. With 4 sinks and 16 recent rows raw `compat`
//! costs 5.3 % at 2 bits and integers of 4 bits in groups of 64 0.1 %; with none 14.5 % and 2.1 %
//! (`tools/eval/README.md`). Raw rows take 16 bits an element, as does the tail of less than a chunk:
//! `(sinks + recent + chunk / 2) * 16` bits a channel and head on average, which is 1 % of the bits at
//! 32,768 tokens by default and 40 % at 512. A draft that is rejected costs nothing as long as it lies in the recent rows; one that reaches into a
//! packed chunk turns its rows back as they decode.
//!
//! # Chunk
//!
//! Tokens of a chunk share a mean and the grids of their scales: 64 tokens cost 0.09 bits an element for
//! them at 64 channels, 128 cost 0.04, 32 cost 0.17. A larger chunk means a longer raw tail and fewer,
//! larger steps of packing. 64 is what was measured.
//!
//! # Eviction
//!
//! [`EvictConfig`](crate::nestedkv::EvictConfig) keeps a count of the prompt's tokens a head. What a
//! budget costs depends on the text far more than bits do: what is gone cannot be found again. Half of
//! the tokens ([`Budget::Adaptive`](crate::nestedkv::Budget), which shares the count out over the heads)
//! is where to start and to try on texts of one's own. What half of the first 1,024 tokens cost the same
//! model, the tokens after them scored:
//!
//! | what stays | perplexity of three texts | copy |
//! |---|---|---|
//! | counts by need, keys scored before their rotary embedding | +1.1 ±0.4 % | +45 % |
//! | the same, then packed at the default (packing alone: +1.6 ±0.3 %) | +2.3 ±0.5 % | +61 % |
//! | counts by need, keys scored as attention sees them | +2.3 ±0.5 % | x 3.1 |
//! | equal counts, keys scored as attention sees them | +3.1 ±0.5 % | x 3.9 |
//! | the newest tokens and 4 sinks | +2.3 ±0.5 % | x 4.7 |
//!
//! ```sh
//! cargo run --manifest-path tools/eval/Cargo.toml -- compare --texts alice,lcet10,gpl3,copy --prompt 1024 --keep 0.5 \
//!     --rule nested-adaptive-plain --rule nested-adaptive --rule nested --rule recent f16
//! cargo run --manifest-path tools/eval/Cargo.toml -- compare --texts alice,lcet10,gpl3,copy --prompt 1024 --keep 0.5 \
//!     --rule nested-adaptive-plain tuned-k3v2-scaled
//! ```
//!
//! So score keys before their rotary embedding where they can be had; losses of evicting and packing add.
//!
//! Raw rows weigh more after an eviction. A head that keeps 512 tokens packs 448 of them by default and
//! takes 4.6 bits an element, positions counted; one that keeps fewer than `sinks + recent + chunk` (84) packs nothing. For
//! small budgets take a smaller chunk.
//!
//! # Time
//!
//! Attention reads the packed form, so it reads a sixth of the bytes at the default; how much of that
//! becomes time depends on the device and on how many query heads share a KV head. An NVIDIA H200, 8 sequences
//! x 8 KV heads x 32,768 tokens x 128 channels, one query token, against PyTorch's attention on f16 rows in
//! the same run; packed rows side by side, and by [`integer_dots`](crate::gpu::ContextDescriptor::integer_dots):
//!
//! | keys and values | 1 query head a KV head | 4 | 8 | the same with integers |
//! |---|---|---|---|---|
//! | 1 bit | 1.7 times as fast | 0.77 | 0.44 | 2.7, 1.8, 1.06 |
//! | 2 bits | 1.6 | 0.93 | 0.54 | 2.4, 1.7, 0.97 |
//! | the default, 3 and 2 bits | 1.6 | 0.95 | 0.55 | 2.0, 1.5, 0.85 |
//! | 3 bits | 1.5 | 0.89 | 0.51 | 1.6, 1.4, 0.77 |
//! | [`Profile::Compat`](crate::layout::Profile::Compat), 2 bits | 0.33 | 0.33 | 0.17 | |
//!
//! In the pages of a pool, with sinks and tails, whose packed pages lay in two slabs, the default is 1.5, 0.82 and
//! 0.47 times as fast (1.7, 1.2 and 0.72 with integers): `slab_bytes` as large as the device binds makes fewer dispatches.
//!
//! ```sh
//! python3 tools/compare_torch.py wgkv --only attend
//! ```
//!
//! Keys without their rotary embedding, as [`Profile::Paper`](crate::layout::Profile::Paper) has them, take a
//! sine and a cosine for each pair of channels and token more. Packing happens once a chunk of each head: a decode
//! step of 32 layers at the default, 8 sequences x 32,768 tokens, takes 1.36 times as long where every sequence packs
//! a chunk (`cargo bench --bench paged`). `benches/RESULTS.md` has all times with their set-up; figures of one's
//! own device come from `wgkv sweep`, which takes presets (`--presets 1.25,2.75,4.25`), lengths and
//! groups.
//!
//! # Where this was not tested
//!
//! - Contexts beyond 2,048 tokens, and retrieval of facts from long ones: perplexity and the copy test
//!   are all that was measured.
//! - Models beyond those that `tools/eval/README.md` names, in particular larger ones; larger models
//!   usually lose less.
//! - Presets that have no row in a table here or there.
