//! What a large deployment costs the plan: sizes of tables, lists and dispatches.

use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig, SequenceId, Write};
use wgkv::layout::Bits;
use wgkv::layout::pool::PageClass;
use wgkv::shape::Dtype;

const SEQUENCES: usize = 1_000;
const TOKENS: u32 = 128 * 1024;
const LAYERS: usize = 80;
const HEADS: usize = 8;
/// WebGPU's least `maxStorageBufferBindingSize` and `maxComputeWorkgroupsPerDimension`.
const BINDING: u64 = 128 << 20;
const GROUPS: u64 = 65_535;

fn config(layers: usize) -> PoolConfig {
    PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers,
        heads: HEADS,
        head_dim_k: 128,
        head_dim_v: 128,
        bits: Some((Bits::Two, Bits::Two)),
        chunk: 64,
        sinks: 4,
        recent: 16,
        raw: Dtype::F16,
        byte_budget: u64::MAX,
        slab_bytes: 2 << 30,
    }
}

fn append(pool: &mut Pool, parts: &[Part]) -> wgkv::cache::pool::Step {
    let step = pool.plan(&Operation::Append { parts, flush: true }).unwrap();
    pool.commit(step.clone()).unwrap();
    step
}

/// 1,000 sequences of 128k tokens in one layer of 80: the tables that a kernel binds, the units that
/// it is dispatched over, and the numbers of its slabs.
#[test]
fn a_layer_of_a_thousand_long_sequences_stays_within_limits() {
    let mut pool = Pool::new(config(1)).unwrap();
    let ids: Vec<SequenceId> = (0..SEQUENCES).map(|_| pool.begin()).collect();
    for sequence in &ids {
        append(&mut pool, &[Part { sequence: *sequence, tokens: TOKENS }]);
    }
    let figures = pool.figures();
    let packed = (TOKENS as u64 - 20) / 64;
    let rows = (SEQUENCES * HEADS) as u64;
    assert_eq!(
        figures.pages,
        [rows, rows * packed, rows * (TOKENS as u64 - 4 - 64 * packed).div_ceil(64)]
    );
    for class in PageClass::ALL {
        assert!(figures.slabs[class.index()] < u64::from(pool.layout().max_slabs(class)));
    }
    let tables = pool.tables(&ids, 0).unwrap();
    assert!(4 * tables.packed.len() as u64 <= BINDING);
    assert_eq!(4 * tables.packed.len() as u64, 4 * rows * packed);
    let units = tables.units(16).unwrap();
    let counts = units.units.each_ref().map(|units| units.len() as u64);
    assert_eq!(counts, [rows, rows * packed.div_ceil(16), rows]);
    // A count of workgroups is folded over two dimensions.
    assert!(counts.iter().all(|count| *count <= GROUPS * GROUPS));
    assert!(counts.iter().all(|count| 20 * count <= BINDING));
    // A step of the batch writes one row a head, wherever it lies.
    let parts: Vec<Part> = ids.iter().map(|id| Part { sequence: *id, tokens: 1 }).collect();
    let step = append(&mut pool, &parts);
    let layer = step.layer(0).unwrap();
    assert_eq!(layer.raw_writes.len() as u64, rows);
    assert!((layer.raw_writes.len() * size_of::<Write>()) as u64 <= BINDING);
    assert!(layer.raw_copies.is_empty() && layer.encodes.is_empty());
    ids.into_iter().for_each(|id| pool.free(id).unwrap());
    assert_eq!(pool.figures().pages, [0; 3]);
}

/// A decode step of 1,000 sequences over all 80 layers, one that flushes and one that does not.
#[test]
fn a_step_over_all_layers_has_lists_of_one_entry_a_head() {
    let mut pool = Pool::new(config(LAYERS)).unwrap();
    let ids: Vec<SequenceId> = (0..SEQUENCES).map(|_| pool.begin()).collect();
    let parts = |tokens| -> Vec<Part> {
        ids.iter().map(|sequence| Part { sequence: *sequence, tokens }).collect()
    };
    append(&mut pool, &parts(83));
    for encodes in [SEQUENCES * HEADS, 0] {
        let step = append(&mut pool, &parts(1));
        assert_eq!(step.source_rows() as usize, SEQUENCES * HEADS);
        assert_eq!(step.layers().count(), LAYERS);
        // Layers that hold the same rows share one list.
        let first = step.layer(0).unwrap();
        for (_, layer) in step.layers() {
            assert_eq!(layer, first);
            assert_eq!(layer.raw_writes.len(), SEQUENCES * HEADS);
            assert_eq!(layer.encodes.len(), encodes);
        }
    }
}
