//! Files out of and into the paged cache in host memory.

use std::sync::Arc;

use super::data::Data;
use super::mlx::{PromptCache, PromptLayer};
use super::saved::Saved;
use super::{check_fits, check_whole};
use crate::cache::cpu::{IncomingRows, PagedCache};
use crate::cache::pool::{Operation, Part, SequenceId};
use crate::error::Result;
use crate::nsnquant::Codebook;

impl PagedCache {
    fn codebook(&self) -> Arc<Codebook> {
        let codebook = self.codecs().map(|[keys, _]| keys.codebook().clone());
        codebook.unwrap_or_else(Codebook::builtin)
    }

    /// Saves sequences, shared pages once: the result is written by [`Saved::write`].
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::snapshot`].
    pub fn save(&self, sequences: &[SequenceId]) -> Result<Saved<'static>> {
        Saved::of(self.pool().config(), &self.codebook(), self.export(sequences)?)
    }

    /// Loads the sequences of a file that a cache of either path saved, and names them in the order
    /// in which they were saved.
    ///
    /// # Errors
    /// Those of [`Saved::read`]; [`crate::Error::OutOfBudget`]. Nothing has changed then.
    pub fn load(&mut self, file: &[u8]) -> Result<Vec<SequenceId>> {
        let saved = Saved::read(file, self.pool().config(), &self.codebook())?;
        self.import(saved.snapshot(), &saved.slices())
    }

    /// A prompt cache of mlx-lm of sequences of one length, packed rows decoded, in the type of the
    /// pool's raw rows.
    ///
    /// # Errors
    /// [`crate::Error::NotWhole`] for a sequence that has been evicted: such a file knows no
    /// positions; [`crate::Error::Mismatch`] for sequences of several lengths;
    /// [`crate::Error::Empty`]; [`crate::Error::UnknownSequence`].
    pub fn save_prompt_cache(&self, sequences: &[SequenceId]) -> Result<PromptCache> {
        let tokens = check_whole(self.pool(), sequences)?;
        let config = self.pool().config();
        let (raw, [dim_k, dim_v]) = (config.raw, self.pool().layout().head_dims());
        let shape = [sequences.len(), config.heads, tokens, dim_k, dim_v];
        let mut cache = PromptCache::new(shape);
        let batch = self.batch(sequences)?;
        for layer in 0..config.layers {
            let rows = self.fetch(&batch, layer, tokens, raw)?;
            let [keys, values] =
                [rows.keys(), rows.values()].map(|side| Data::new(raw, side.bytes()));
            cache.layers.push(PromptLayer { keys, values });
        }
        Ok(cache)
    }

    /// Begins as many sequences as a prompt cache of mlx-lm has, with all its rows as their prompts,
    /// which are yet to be finished. Rows of another type than the pool's are converted as
    /// [`PagedCache::apply`] does it.
    ///
    /// # Errors
    /// [`crate::Error::Mismatch`] for a cache of another shape than the pool's;
    /// [`crate::Error::Length`] for rows that do not fill their shape; [`crate::Error::OutOfBudget`].
    /// No sequence has begun then.
    pub fn load_prompt_cache(&mut self, cache: &PromptCache) -> Result<Vec<SequenceId>> {
        check_fits(self.pool().config(), cache)?;
        let tokens = cache.tokens as u32;
        let ids: Vec<SequenceId> = (0..cache.batch).map(|_| self.begin()).collect();
        let parts: Vec<Part> = ids.iter().map(|&sequence| Part { sequence, tokens }).collect();
        let loaded = self.step(&Operation::Prefill { parts: &parts }).and_then(|step| {
            cache.layers.iter().enumerate().try_for_each(|(layer, rows)| {
                let (keys, values) = (rows.keys.elements(), rows.values.elements());
                self.apply(&step, layer, Some(IncomingRows { keys, values }))
            })
        });
        match loaded {
            Ok(()) => Ok(ids),
            Err(fault) => {
                ids.into_iter().try_for_each(|id| self.free(id))?;
                Err(fault)
            }
        }
    }
}
