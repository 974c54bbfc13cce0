//! Timestamps, where the device has them. They are advisory: some drivers return zeros.

use super::context::Context;
use super::readback::Readback;
use crate::error::{Error, Result};

/// Most marks that one recording measures.
const MARKS: u32 = 512;

/// Query sets and labels of a recording.
pub(super) struct Timer {
    queries: wgpu::QuerySet,
    labels: Vec<&'static str>,
    label: &'static str,
}

impl Timer {
    /// A timer, if the device has timestamps.
    pub(super) fn new(context: &Context) -> Option<Self> {
        let device = context.device();
        device.features().contains(wgpu::Features::TIMESTAMP_QUERY).then(|| Self {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("wgkv timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * MARKS,
            }),
            labels: Vec::new(),
            label: "",
        })
    }

    pub(super) fn mark(&mut self, label: &'static str) {
        self.label = label;
    }

    /// The queries of the pass that begins now; none once all are used.
    pub(super) fn writes(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let index = self.labels.len() as u32;
        (index < MARKS).then(|| {
            self.labels.push(self.label);
            wgpu::ComputePassTimestampWrites {
                query_set: &self.queries,
                beginning_of_pass_write_index: Some(2 * index),
                end_of_pass_write_index: Some(2 * index + 1),
            }
        })
    }

    /// Resolves the queries into a buffer.
    pub(super) fn resolve(
        self,
        context: &Context,
        encoder: &mut wgpu::CommandEncoder,
    ) -> Result<(wgpu::Buffer, Vec<&'static str>)> {
        let count = 2 * self.labels.len() as u32;
        let size = u64::from(count.max(2)) * u64::from(wgpu::QUERY_SIZE);
        let device = context.device();
        let make = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("wgkv timestamps"),
                size,
                usage: usage | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        };
        let resolved = make(wgpu::BufferUsages::QUERY_RESOLVE);
        if count > 0 {
            encoder.resolve_query_set(&self.queries, 0..count, &resolved, 0);
        }
        Ok((resolved, self.labels))
    }
}

/// Time of one measured pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Label of the mark.
    pub label: &'static str,
    /// Nanoseconds, or `None` where the driver's timestamps make no sense.
    pub nanoseconds: Option<f64>,
}

/// Times of the passes of a recording, on their way back.
#[derive(Debug)]
pub struct Timing {
    readback: Readback,
    labels: Vec<&'static str>,
    period: f32,
}

impl Timing {
    pub(super) fn new(readback: Readback, labels: Vec<&'static str>, period: f32) -> Self {
        Self { readback, labels, period }
    }

    /// The spans, in the order of recording.
    ///
    /// # Errors
    /// As [`Readback`].
    pub async fn spans(self) -> Result<Vec<Span>> {
        let bytes = self.readback.await?;
        let ticks: Vec<u64> = bytemuck::try_cast_slice(&bytes)
            .map(<[u64]>::to_vec)
            .or_else(|_| {
                bytes
                    .chunks_exact(8)
                    .map(|c| <[u8; 8]>::try_from(c).map(u64::from_le_bytes))
                    .collect::<core::result::Result<Vec<u64>, _>>()
            })
            .map_err(|e| Error::DeviceLost { reason: e.to_string() })?;
        Ok(self
            .labels
            .iter()
            .zip(ticks.chunks_exact(2))
            .map(|(label, pair)| Span {
                label,
                nanoseconds: (pair[0] != 0 && pair[1] > pair[0])
                    .then(|| (pair[1] - pair[0]) as f64 * f64::from(self.period)),
            })
            .collect())
    }
}
