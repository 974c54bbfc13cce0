//! What a paged cache and its pool refuse before anything is recorded or changed: sizes that no memory
//! holds, tensors that lie where the cache writes, what belongs to another cache.

use half::f16;
use wgkv::Error;
use wgkv::attention::{PagedAttend, Queries};
use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig, SequenceId};
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::Slice;
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::layout::tables::Tables;
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements};

use crate::support;
use crate::twin::{Twin, config};

fn filled(tokens: u32) -> (Twin, SequenceId) {
    let mut twin = Twin::new(config());
    let place = twin.begin(1);
    twin.add(&[(place, tokens)], false, true).unwrap();
    let id = twin.live[place].0;
    (twin, id)
}

#[test]
fn rows_that_no_budget_holds_are_refused_without_their_lists() {
    let base = PoolConfig { chunk: 2, sinks: 0, recent: 0, heads: 1, ..config() };
    for byte_budget in [base.smallest_bytes().unwrap(), 1 << 20] {
        let config = PoolConfig { byte_budget, ..base.clone() };
        let mut pool = Pool::new(config).unwrap();
        let sequence = pool.begin();
        let parts = [Part { sequence, tokens: u32::MAX - 1 }];
        let plan = pool.plan(&Operation::Prefill { parts: &parts });
        assert!(
            matches!(plan, Err(Error::OutOfBudget { available, .. }) if available == byte_budget)
        );
        let needs = pool.needs(&Operation::Append { parts: &parts, flush: true }).unwrap();
        assert!(!needs.fits());
        assert_eq!(pool.seen(sequence).unwrap(), 0);
    }
}

/// A configuration written out by hand is held to what the one of a preset is.
#[test]
fn pools_that_could_not_hold_the_smallest_cache_are_refused() {
    let needed = config().smallest_bytes().unwrap();
    for byte_budget in [0, 1, needed - 1] {
        let small = PoolConfig { byte_budget, ..config() };
        let faults = [
            Pool::new(small.clone()).map(drop),
            cpu::PagedCache::new(small.clone(), Codebook::builtin()).map(drop),
            gpu::PagedCache::new(support::context(), small, Codebook::builtin()).map(drop),
        ];
        for fault in faults {
            let Err(Error::OutOfBudget { needed: got, available }) = fault else {
                panic!("{fault:?} for {byte_budget} bytes");
            };
            assert_eq!((got, available), (needed, byte_budget));
        }
    }
    let mut pool = Pool::new(PoolConfig { byte_budget: needed, ..config() }).unwrap();
    let parts = [Part { sequence: pool.begin(), tokens: 21 }];
    let append = Operation::Append { parts: &parts, flush: true };
    assert!(pool.needs(&append).unwrap().fits());
}

#[test]
fn pools_of_too_many_heads_are_refused() {
    for (layers, heads) in [(u32::MAX as usize, 1), (1, u32::MAX as usize), (1 << 15, 1 << 6)] {
        let pool = Pool::new(PoolConfig { layers, heads, ..config() });
        let argument = "layers * heads";
        assert!(
            matches!(pool, Err(Error::OutOfRange { argument: got, .. }) if got == argument),
            "{layers} {heads}"
        );
    }
}

#[test]
fn rows_that_the_device_cannot_bind_are_refused_before_they_are_booked() {
    let (mut twin, sequence) = filled(4);
    let allowed = support::context().device().limits().max_storage_buffer_binding_size;
    let Ok(tokens) = u32::try_from(allowed / (2 * 2 * 64) + 1) else { return };
    let parts = [Part { sequence, tokens }];
    let step = twin.gpu.step(&Operation::Append { parts: &parts, flush: true });
    // A device that binds more than WebGPU promises may bind more than the budget holds.
    let bound = matches!(step, Err(Error::DeviceLimit { argument: "keys", .. }));
    let held = matches!(step, Err(Error::OutOfBudget { needed, available }) if needed > available);
    assert!(bound || allowed > 1 << 27 && held, "{step:?}");
    twin.check_account();
    twin.add(&[(0, 3)], false, true).unwrap();
    twin.check(0);
}

#[test]
fn rows_that_lie_in_a_slab_or_overlap_are_refused() {
    let (mut twin, sequence) = filled(40);
    let slab = twin.gpu.slabs(PageClass::Raw, 0)[0].clone().unwrap();
    let other = support::context().create("rows", 1 << 18).unwrap();
    let (slab, other) = (Slice::all(&slab), Slice::all(&other));
    let part = |offset| Slice { offset, size: 1 << 16, ..other };
    let mut batch = twin.gpu.batch(&[sequence]).unwrap();
    let mut fetch = |keys, values, positions| {
        let to = gpu::Fetch { keys, values, positions, tokens: 40, dtype: Dtype::F16 };
        support::run(|rec| twin.gpu.fetch(rec, &mut batch, 0, &to))
    };
    for (keys, values, positions) in [
        (other, other, None),
        (slab, other, None),
        (other, slab, None),
        (part(0), part(1 << 16), Some(slab)),
        (part(0), part(1 << 15), None),
        (part(0), part(1 << 16), Some(part(1 << 16))),
    ] {
        assert!(matches!(fetch(keys, values, positions), Err(Error::Offsets { .. })));
    }
    // Parts of one buffer that lie apart are no fault.
    fetch(part(0), part(1 << 16), Some(part(1 << 17))).unwrap();

    let parts = [Part { sequence, tokens: 3 }];
    let step = twin.gpu.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
    for (keys, values) in [(slab, other), (other, slab)] {
        let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
        let fault = support::run(|rec| twin.gpu.record(rec, &step, 0, Some(rows)));
        assert!(matches!(fault, Err(Error::Offsets { .. })));
    }
    let rows = gpu::IncomingRows { keys: other, values: other, dtype: Dtype::F16 };
    support::run(|rec| (0..2).try_for_each(|layer| twin.gpu.record(rec, &step, layer, Some(rows))))
        .unwrap();
}

#[test]
fn steps_and_batches_of_another_cache_are_refused() {
    let (mut twin, sequence) = filled(40);
    let (mut other, _) = filled(40);
    let operation = Operation::Append { parts: &[Part { sequence, tokens: 1 }], flush: true };
    let (host, device) = (twin.cpu.step(&operation).unwrap(), twin.gpu.step(&operation).unwrap());
    let rows = [f16::ONE; 2 * 64];
    let (keys, values) = (Elements::F16(&rows), Elements::F16(&rows[..64]));
    let incoming = cpu::IncomingRows { keys, values };
    let fault = other.cpu.apply(&host, 0, Some(incoming));
    assert!(matches!(fault, Err(Error::Foreign { argument: "step", .. })));
    let buffer = support::context().create("rows", 4096).unwrap();
    let slice = Slice::all(&buffer);
    let incoming = gpu::IncomingRows { keys: slice, values: slice, dtype: Dtype::F16 };
    let fault = support::run(|rec| other.gpu.record(rec, &device, 0, Some(incoming)));
    assert!(matches!(fault, Err(Error::Foreign { argument: "step", .. })));

    let batch = twin.cpu.batch(&[sequence]).unwrap();
    let queries = Queries { data: keys, batch: 1, heads: 2, tokens: 1, head_dim: 64 };
    let fault = other.cpu.attend(&batch, 0, &queries, &PagedAttend::default());
    assert!(matches!(fault, Err(Error::Foreign { argument: "batch", .. })));
    let mut batch = twin.gpu.batch(&[sequence]).unwrap();
    let to =
        gpu::Fetch { keys: slice, values: slice, positions: None, tokens: 40, dtype: Dtype::F16 };
    let fault = support::run(|rec| other.gpu.fetch(rec, &mut batch, 0, &to));
    assert!(matches!(fault, Err(Error::Foreign { argument: "batch", .. })));
}

#[test]
fn tables_that_do_not_hold_together_have_no_units() {
    let tables = Tables {
        next: vec![1],
        sinks: vec![PageId::NONE],
        sink_rows: vec![0],
        packed_offsets: vec![0, 0],
        packed: vec![],
        tail_offsets: vec![0, 20],
        tail: vec![PageId::new(0); 20],
        tail_rows: vec![5],
        chunk: 16,
    };
    // Pages without rows are read as such.
    let units = tables.units(16).unwrap();
    assert_eq!(units.units[2].iter().map(|unit| unit.rows).collect::<Vec<_>>(), [5, 0]);
    for wrong in [
        Tables { tail_offsets: vec![], ..tables.clone() },
        Tables { tail_offsets: vec![0, u32::MAX], ..tables.clone() },
        Tables { packed_offsets: vec![0, 3], ..tables.clone() },
        Tables { sink_rows: vec![], ..tables.clone() },
        Tables { tail_rows: vec![], ..tables.clone() },
        Tables { chunk: u32::MAX, ..tables.clone() },
    ] {
        assert!(wrong.units(16).is_err());
    }
}
