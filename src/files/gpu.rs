//! Files out of and into the paged cache in device memory.

use core::future::Future;
use std::sync::Arc;

use super::data::Data;
use super::mlx::{PromptCache, PromptLayer};
use super::saved::Saved;
use super::{check_fits, check_whole};
use crate::cache::gpu::{Fetch, IncomingRows, PagedCache};
use crate::cache::pool::{Operation, Part, SequenceId};
use crate::error::{Error, Result};
use crate::gpu::{Recorder, Slice};
use crate::nsnquant::Codebook;

impl PagedCache {
    fn codebook(&self) -> Arc<Codebook> {
        let codebook = self.codecs().map(|[keys, _]| keys.codec().codebook().clone());
        codebook.unwrap_or_else(Codebook::builtin)
    }

    /// Records the read-back of sequences, shared pages once, as they are at the end of the recording
    /// ([`PagedCache::export`]). What comes once it has run is written by [`Saved::write`].
    ///
    /// # Errors
    /// Those of [`crate::cache::pool::Pool::snapshot`]; the future those of
    /// [`crate::gpu::Readback`].
    pub fn save(
        &self,
        rec: &mut Recorder<'_>,
        sequences: &[SequenceId],
    ) -> Result<impl Future<Output = Result<Saved<'static>>> + use<>> {
        let exporting = self.export(rec, sequences)?;
        let (config, codebook) = (self.pool().config().clone(), self.codebook());
        Ok(async move { Saved::of(&config, &codebook, exporting.get().await?) })
    }

    /// Loads the sequences of a file that a cache of either path saved, and names them in the order
    /// in which they were saved. Their pages are uploaded by the recording
    /// ([`PagedCache::import`]).
    ///
    /// # Errors
    /// Those of [`Saved::read`]; [`crate::Error::OutOfBudget`];
    /// [`crate::Error::OutOfDeviceMemory`]; [`crate::Error::DeviceLost`]. No sequence has changed
    /// then.
    pub fn load(&mut self, rec: &mut Recorder<'_>, file: &[u8]) -> Result<Vec<SequenceId>> {
        let saved = Saved::read(file, self.pool().config(), &self.codebook())?;
        self.import(rec, saved.snapshot(), &saved.slices())
    }

    /// Records the decoding of sequences of one length into a prompt cache of mlx-lm, in the type of
    /// the pool's raw rows.
    ///
    /// # Errors
    /// [`crate::Error::NotWhole`] for a sequence that has been evicted: such a file knows no
    /// positions; [`crate::Error::Mismatch`] for sequences of several lengths;
    /// [`crate::Error::Empty`]; [`crate::Error::UnknownSequence`]; [`crate::Error::DeviceLimit`] for
    /// rows of a layer that the device cannot bind. The future resolves to those of
    /// [`crate::gpu::Readback`].
    pub fn save_prompt_cache(
        &self,
        rec: &mut Recorder<'_>,
        sequences: &[SequenceId],
    ) -> Result<impl Future<Output = Result<PromptCache>> + use<>> {
        let tokens = check_whole(self.pool(), sequences)?;
        let config = self.pool().config();
        let (dtype, dims) = (config.raw, self.pool().layout().head_dims());
        let rows = sequences.len().saturating_mul(config.heads).saturating_mul(tokens);
        let mut cache = PromptCache::new([sequences.len(), config.heads, tokens, dims[0], dims[1]]);
        let mut batch = self.batch(sequences)?;
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let size = |dim: usize| (rows as u64).saturating_mul((dim * dtype.bytes()) as u64);
            let keys = rec.context().create("keys", size(dims[0]))?;
            let values = rec.context().create("values", size(dims[1]))?;
            let [keys, values] = [Slice::all(&keys), Slice::all(&values)];
            let to = Fetch { keys, values, positions: None, tokens, dtype };
            self.fetch(rec, &mut batch, layer, &to)?;
            layers.push([rec.read_back(keys)?, rec.read_back(values)?]);
        }
        Ok(async move {
            for [keys, values] in layers {
                let keys = Data::new(dtype, &keys.await?);
                let values = Data::new(dtype, &values.await?);
                cache.layers.push(PromptLayer { keys, values });
            }
            Ok(cache)
        })
    }

    /// Begins as many sequences as a prompt cache of mlx-lm has, and records all its rows as their
    /// prompts, which are yet to be finished. Rows of another type than the pool's are converted as
    /// [`PagedCache::record`] does it.
    ///
    /// # Errors
    /// [`crate::Error::Mismatch`] for a cache of another shape than the pool's;
    /// [`crate::Error::Dtype`] for keys and values of two types in one layer;
    /// [`crate::Error::Length`] for rows that do not fill their
    /// shape; [`crate::Error::OutOfBudget`]; [`crate::Error::DeviceLimit`] for rows of a layer that
    /// the device cannot bind; [`crate::Error::OutOfDeviceMemory`]; [`crate::Error::DeviceLost`]. No
    /// sequence has begun then.
    pub fn load_prompt_cache(
        &mut self,
        rec: &mut Recorder<'_>,
        cache: &PromptCache,
    ) -> Result<Vec<SequenceId>> {
        check_fits(self.pool().config(), cache)?;
        let mut layers = Vec::with_capacity(cache.layers.len());
        for layer in &cache.layers {
            let (keys, values) = (layer.keys.elements(), layer.values.elements());
            let dtype = keys.dtype();
            if values.dtype() != dtype {
                let (argument, got, expected) = ("values", values.dtype().name(), dtype.name());
                return Err(Error::Dtype { argument, got, expected });
            }
            let keys = rec.context().upload("keys", keys.bytes())?;
            layers.push((keys, rec.context().upload("values", values.bytes())?, dtype));
        }
        let tokens = cache.tokens as u32;
        let ids: Vec<SequenceId> = (0..cache.batch).map(|_| self.begin()).collect();
        let parts: Vec<Part> = ids.iter().map(|&sequence| Part { sequence, tokens }).collect();
        let loaded = self.step(&Operation::Prefill { parts: &parts }).and_then(|step| {
            layers.iter().enumerate().try_for_each(|(layer, (keys, values, dtype))| {
                let [keys, values] = [Slice::all(keys), Slice::all(values)];
                let rows = IncomingRows { keys, values, dtype: *dtype };
                self.record(rec, &step, layer, Some(rows))
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
