//! Attention by products of integers, on which a device may be asked to run: what rounding may cost, and
//! what it may not.

use wgkv::attention::{Causal, PagedAttend};
use wgkv::gpu::{Context, ContextDescriptor};
use wgkv::layout::pool::PageClass;
use wgkv::layout::{Bits, Profile, Scheme};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::common::{Case, Data, Kind, Path, Random, Shape as FlatShape};
use crate::packed::SLACK;
use crate::paged::{Batch, Head, Member, Shape};
use crate::support;

/// What [`ContextDescriptor::integer_dots`] allows, in the units of [`Batch::judge`]: the rounding of
/// queries to 127ths of their largest channel is 3 * 2^-8 of the product of the norms of query and key
/// at the very most (a largest channel of 3 times the rest, all roundings of one sign), and this is a
/// 24th of that. What weights are rounded by is less where a round has few tokens.
pub const INTEGER_SLACK: f64 = 8192.0;

/// What a device may have: products of integers, none of them, and the baseline alone.
pub fn devices() -> [Context; 3] {
    let full = support::context().device().limits();
    let small = wgpu::Limits {
        max_compute_workgroup_storage_size: wgpu::Limits::default()
            .max_compute_workgroup_storage_size,
        ..full.clone()
    };
    [(&full, true), (&full, false), (&small, false)]
        .map(|(limits, integer_dots)| device(limits, integer_dots))
}

fn device(limits: &wgpu::Limits, integer_dots: bool) -> Context {
    let (device, queue) = support::device(limits);
    let descriptor = ContextDescriptor { integer_dots, ..ContextDescriptor::default() };
    Context::new(&device, &queue, &descriptor).expect("a context")
}

/// The device that multiplies integers.
pub fn integers() -> Context {
    device(&support::context().device().limits(), true)
}

/// Kernels with a name that starts so, by which integers were multiplied.
pub fn built(device: &Context, start: &str) -> usize {
    let of_bytes = |name: &str| name.starts_with(start) && name.contains("+bytes");
    device.built().iter().filter(|(name, _)| of_bytes(name)).count()
}

pub const PAGED: &str = "attention/paged_packed";
const FLAT: &str = "attention/packed";
const DIM: usize = 64;
/// The least power of two of which lanes have equal parts at so many channels.
pub const CHUNK: usize = 64;
/// Query heads a KV head, which are answered one, two, four and twice four together.
pub const GROUPS: [usize; 4] = [1, 2, 4, 8];

fn tuned(rates: [Bits; 2]) -> [Scheme; 2] {
    rates.map(|bits| Profile::Tuned.scheme(bits))
}

/// Books of one row, and of several.
pub fn pairs() -> [[Scheme; 2]; 3] {
    [[Bits::One; 2], [Bits::Two; 2], [Bits::Three, Bits::Two]].map(tuned)
}

pub fn shape(schemes: [Scheme; 2], group: usize) -> Shape {
    Shape { schemes: Some(schemes), chunk: CHUNK, slab_pages: 200, group, ..Shape::simple(DIM) }
}

/// Members of one head each.
pub fn members(heads: &[Head]) -> Vec<Member> {
    let seeds = 40u64..;
    seeds.zip(heads).map(|(seed, head)| Member { seed, heads: vec![*head] }).collect()
}

/// Rows side by side in pages alone, of 1, 0 and 11 pages.
fn flat(schemes: [Scheme; 2], group: usize) -> Case {
    let shape = FlatShape {
        batch: 1,
        kv_heads: 3,
        group,
        tokens: 1,
        dim_k: DIM,
        dim_v: DIM,
        raw: vec![0, 9, 0],
        pages: vec![1, 0, 11],
        chunk: CHUNK,
        bits: (2, 2),
        dtype: Dtype::F16,
    };
    let mut case = Case::new(shape, [Kind::Normal; 3], 47);
    case.repack(schemes, [Kind::Normal, Kind::Offset], 47);
    case
}

#[test]
fn a_page_alone_and_rows_of_very_different_lengths() -> wgkv::Result<()> {
    let device = integers();
    let config = PagedAttend::default();
    // Of a unit that is full, one that is not, one page, none, and nothing at all.
    let uneven = [(0, 33, 0), (0, 0, 9), (4, 1, 70), (0, 0, 0), (0, 9, 0), (0, 1, 0)];
    for (schemes, group) in pairs().into_iter().flat_map(|pair| GROUPS.map(|group| (pair, group))) {
        let before = [PAGED, FLAT].map(|path| built(&device, path));
        for heads in [&[(0, 1, 0)], &uneven[..]] {
            let batch = Batch::new(&shape(schemes, group), &members(heads), 0);
            let (got, _) = batch.gpu_on(&device, &config, Ok)?;
            batch.judge(&got, &config, INTEGER_SLACK);
        }
        let case = flat(schemes, group);
        case.judge(&case.gpu_on(&device)?, INTEGER_SLACK);
        // Eight queries are twice four.
        let more = usize::from(group < 8);
        let now = [PAGED, FLAT].map(|path| built(&device, path));
        assert_eq!(now, before.map(|count| count + more), "{schemes:?} {group}");
    }
    Ok(())
}

#[test]
fn a_query_that_sees_no_token_of_a_page_gives_0() -> wgkv::Result<()> {
    let device = integers();
    for group in GROUPS {
        let shape = Shape { tokens: 2, ..shape(pairs()[1], group) };
        let batch = Batch::new(&shape, &members(&[(0, 2, 0)]), 0);
        // A position between those of a page, and the next one, which the page has.
        let pairs = batch.rows.positions[0].windows(2);
        let gap = pairs.map(|pair| pair[1] - 1).zip(&batch.rows.positions[0]);
        let gap = gap.skip(9).find(|(gap, last)| gap != *last).expect("a gap").0;
        let (firsts, window) = ([gap], Some(1));
        let causal = Causal::From(&firsts);
        let config = PagedAttend { causal, window, ..PagedAttend::default() };
        let (got, _) = batch.gpu_on(&device, &config, Ok)?;
        batch.judge(&got, &config, INTEGER_SLACK);
        for head in got.out.chunks(2 * DIM) {
            let [unseen, seen] = [&head[..DIM], &head[DIM..]];
            assert!(unseen.iter().all(|x| *x == 0.0) && seen.iter().any(|x| *x != 0.0));
        }
    }
    assert!(built(&device, PAGED) >= 2);
    Ok(())
}

#[test]
fn elements_of_queries_that_are_not_finite_read_as_0() -> wgkv::Result<()> {
    let device = integers();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
    for (group, dtype) in [(1, Dtype::F32), (2, Dtype::F16), (4, Dtype::Bf16), (8, Dtype::F32)] {
        let mut batch = Batch::new(&shape(pairs()[1], group), &members(&[(0, 3, 0), (0, 1, 0)]), 0);
        let mut case = flat(pairs()[1], group);
        let mut answers = Vec::new();
        for holes in [odd, [0.0; 4]] {
            let mut random = Random(48);
            // The first query has nothing else, the others here and there.
            let mut queries = |count: usize| -> Data {
                let mut hole = |at| at < DIM || random.below(9) == 0;
                let value = |at: usize| if hole(at) { holes[at % 4] } else { (at as f32).sin() };
                Data::new(dtype, &(0..count).map(value).collect::<Vec<f32>>())
            };
            batch.queries = queries(2 * group * DIM);
            case.queries = queries(3 * group * DIM);
            let config = PagedAttend::default();
            let (got, _) = batch.gpu_on(&device, &config, Ok)?;
            batch.judge(&got, &config, INTEGER_SLACK);
            let side = case.gpu_on(&device)?;
            case.judge(&side, INTEGER_SLACK);
            answers.push([got.out, got.lse, side.out, side.lse]);
        }
        assert_eq!(answers[0], answers[1], "{group} {dtype:?}");
    }
    assert!(built(&device, PAGED) >= 3 && built(&device, FLAT) >= 3);
    Ok(())
}

#[test]
fn pages_that_no_encoder_made_give_finite_outputs() -> wgkv::Result<()> {
    let devices = devices();
    let window = Some(90);
    let configs = [PagedAttend::default(), PagedAttend { window, ..PagedAttend::default() }];
    // Anything, and infinities and NaN of f16 and f32 wherever a page has such.
    let fills = [None, Some(0x7c00_fc00), Some(0x7f80_0000), Some(u32::MAX)];
    for (group, fill) in GROUPS.into_iter().zip(fills) {
        let mut random = Random(49);
        let mut word = || fill.unwrap_or(random.bits() as u32);
        let schemes = pairs()[2];
        let mut batch = Batch::new(&shape(schemes, group), &members(&[(0, 9, 0), (4, 1, 9)]), 0);
        let packed = &mut batch.slabs[PageClass::Packed.index()];
        packed.iter_mut().flatten().flatten().for_each(|old| *old = word());
        let mut case = flat(schemes, group);
        for pages in [&mut case.key_pages, &mut case.value_pages] {
            pages.iter_mut().for_each(|old| *old = word());
        }
        for device in &devices {
            let mut answers = vec![case.gpu_on(device)?];
            for config in &configs {
                answers.push(batch.gpu_on(device, config, Ok)?.0);
            }
            for got in answers {
                let all = || got.out.iter().chain(&got.lse);
                let bad = all().filter(|x| !x.is_finite()).count();
                assert_eq!(bad, 0, "{group} {fill:?}");
            }
        }
    }
    assert!(built(&devices[0], PAGED) >= 3 && built(&devices[0], FLAT) >= 3);
    Ok(())
}

/// Pages that a workgroup takes in one after the other, and those it takes at once.
const UNIT: usize = 16;
const ROUND: usize = 8;

/// The token of a round that outweighs all.
const HEAVY: usize = 5;
/// What a token weighs of which a lane's four of a round come to less than half a 127th of the
/// largest weight, and its eight of a unit to nearly one.
const SMALL: f64 = 0.12 / 127.0;
/// What rounding leaves at the end of a unit, here 7,400 of the units of [`Batch::judge`]. Were it lost
/// after every round, or every token, it would be 141,000.
const REST_SLACK: f64 = 4.0 * INTEGER_SLACK;

/// A unit of pages of which most tokens weigh little, with the settings that make it so. Even tokens,
/// which are those of every other lane, are small; odd ones weigh nothing, but for one of each round in
/// `heavy`, which outweighs all. Values of the small ones have one sign and those of the others the
/// other, so that the mean of a page, which is weighed exactly, does not tell what they come to.
fn faint(group: usize, heavy: std::ops::Range<usize>) -> (Batch, PagedAttend<'static>) {
    let mut random = Random(50);
    let direction = random.values(Kind::Normal, 1, DIM);
    let mut batch = Batch::new(&shape(pairs()[2], group), &members(&[(0, UNIT, 0)]), 0);
    for number in 0..UNIT {
        let mut sides = [Vec::new(), Vec::new()];
        for token in 0..CHUNK {
            let small = token % 2 == 0;
            let most = number % ROUND == 0 && heavy.contains(&(number / ROUND)) && token == HEAVY;
            let along = if most {
                8.0
            } else if small {
                0.0
            } else {
                -8.0
            };
            let key = |c: usize| if c == 0 { along } else { 0.0 } + 0.01 * random.normal();
            sides[0].extend((0..DIM).map(key));
            let sign = if small { 1.0 } else { -1.0 };
            sides[1].extend(direction.iter().map(|v| sign * v));
        }
        batch.repack(number, [&sides[0], &sides[1]]);
    }
    // A query of one channel has nothing that is rounded.
    let query = |at: usize| if at.is_multiple_of(DIM) { 1.0 } else { 0.0 };
    batch.queries = Data::new(Dtype::F32, &(0..group * DIM).map(query).collect::<Vec<f32>>());
    let key = |token: usize| batch.rows.keys[0][token * DIM];
    let scale = Some((-SMALL.ln() / (key(HEAVY) - key(0))) as f32);
    (batch, PagedAttend { scale, ..PagedAttend::default() })
}

#[test]
fn small_weights_are_not_lost() -> wgkv::Result<()> {
    let device = integers();
    for group in GROUPS {
        let (batch, config) = faint(group, 0..2);
        batch.judge_on(Path::Gpu, &config, SLACK);
        let (got, _) = batch.gpu_on(&device, &config, Ok)?;
        batch.judge(&got, &config, REST_SLACK);
    }
    assert_eq!(built(&device, PAGED), 3);
    Ok(())
}

#[test]
fn codes_of_values_that_are_not_seen_change_nothing() -> wgkv::Result<()> {
    let devices = devices();
    let stride = DIM / 32 * 2;
    for group in GROUPS {
        // The second round's tokens weigh far less than the first's, and most are not seen.
        let (mut batch, config) = faint(group, 0..1);
        let seen = ROUND * CHUNK + 21;
        let firsts = [batch.rows.positions[0][seen - 1]];
        let config = PagedAttend { causal: Causal::From(&firsts), ..config };
        let mut answers = Vec::new();
        for change in [false, true] {
            if change {
                let class = PageClass::Packed;
                let page = batch.tables.packed[ROUND];
                let first = batch.layout.word_of(class, page) + batch.layout.values_offset(class);
                let slab = batch.slabs[class.index()][0].as_mut().expect("a slab");
                let codes = first + (seen - ROUND * CHUNK) * stride..first + CHUNK * stride;
                slab[codes].iter_mut().for_each(|word| *word = !*word);
            }
            for device in &devices {
                let (got, _) = batch.gpu_on(device, &config, Ok)?;
                answers.push((got.out, got.lse));
            }
        }
        assert_eq!(answers[..3], answers[3..], "{group}");
    }
    Ok(())
}
