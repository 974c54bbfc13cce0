//! The slabs of a paged cache on the device.

use crate::cache::pool::SlabId;
use crate::error::{Error, Result};
use crate::gpu::{Context, Slice};
use crate::layout::pool::{PageClass, PoolLayout};

use super::pages::Slab;

/// Slabs by layer, class and number.
#[derive(Clone, Debug)]
pub(super) struct Slabs {
    layers: Vec<[Vec<Option<wgpu::Buffer>>; 3]>,
}

impl Slabs {
    pub(super) fn new(layers: usize) -> Self {
        Self { layers: vec![Default::default(); layers] }
    }

    pub(super) fn of(&self, class: PageClass, layer: usize) -> &[Option<wgpu::Buffer>] {
        self.layers.get(layer).map_or(&[], |slabs| &slabs[class.index()])
    }

    /// A slab as kernels bind it.
    pub(super) fn bound(&self, class: PageClass, layer: usize, number: u32) -> Result<Slab<'_>> {
        let slab = self.of(class, layer).get(number as usize).and_then(Option::as_ref);
        let expected = "a slab that there is";
        let (index, got) = (layer, u64::from(number));
        let buffer = slab.ok_or(Error::Offsets { argument: "slab", index, got, expected })?;
        Ok(Slab { class, number, words: Slice::all(buffer) })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.layers.iter().flatten().flatten().flatten().map(wgpu::Buffer::size).sum()
    }

    pub(super) fn put(&mut self, slab: SlabId, buffer: wgpu::Buffer) {
        let slabs = &mut self.layers[slab.layer as usize][slab.class.index()];
        let number = slab.slab as usize;
        if slabs.len() <= number {
            slabs.resize(number + 1, None);
        }
        slabs[number] = Some(buffer);
    }

    pub(super) fn drop(&mut self, dropped: &[SlabId]) {
        for slab in dropped {
            self.layers[slab.layer as usize][slab.class.index()][slab.slab as usize] = None;
        }
    }
}

/// Makes the buffers of slabs, or none of them.
pub(super) fn make(
    context: &Context,
    layout: &PoolLayout,
    opened: &[SlabId],
) -> Result<Vec<(SlabId, wgpu::Buffer)>> {
    let make = |slab: &SlabId| {
        let buffer = context.create("slab", layout.slab_bytes(slab.class))?;
        Ok((*slab, buffer))
    };
    opened.iter().map(make).collect()
}
