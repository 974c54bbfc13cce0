//! A start-up test for the field: the few things that devices have been seen to get wrong and that
//! every kernel of this library stands on.

use core::fmt;
use core::future::Future;

use super::buffer::Slice;
use super::context::Context;
use super::dispatch::{Groups, Recorder};
use super::kernel::{Binding, Kernel, Variant};
use super::params::{Magic, Params, params};
use super::readback::Readback;
use crate::error::Result;

params! {
    /// Parameters of the self-test.
    pub struct SelfTestParams {
        /// Words in the table.
        words: u32,
        /// Division by [`DIVISOR`].
        multiplier: u32,
        /// Its first shift.
        shift1: u32,
        /// Its second shift.
        shift2: u32,
    }
}

/// 64 words a workgroup.
static KERNEL: Kernel = Kernel {
    name: "common/self_test",
    source: concat!(
        include_str!("../../wgsl/common/divide.wgsl"),
        include_str!("../../wgsl/common/element.wgsl"),
        include_str!("../../wgsl/common/order.wgsl"),
        include_str!("../../wgsl/common/self_test.wgsl"),
    ),
    bindings: &[Binding::Read("words"), Binding::Write("answers")],
    params: SelfTestParams::LAYOUT,
};

/// Runs only on devices with `SUBGROUP`, and is no part of the kernels that every device must build.
static LANES_KERNEL: Kernel = Kernel {
    name: "common/self_test_lanes",
    source: "
        struct Params { words: u32, multiplier: u32, shift1: u32, shift2: u32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> words: array<u32>;
        @group(0) @binding(2) var<storage, read_write> answers: array<u32>;
        @compute @workgroup_size(64)
        fn main(
            @builtin(local_invocation_index) lane: u32,
            @builtin(subgroup_size) size: u32,
        ) {
            let word = words[min(lane, params.words - 1u)];
            answers[2u * lane] = size;
            answers[2u * lane + 1u] = subgroupAdd(word & 1u) + 256u * subgroupAdd(1u);
        }",
    bindings: &[Binding::Read("words"), Binding::Write("answers")],
    params: SelfTestParams::LAYOUT,
};

/// The kernel, for tests that list every one.
pub fn self_test_kernel() -> &'static Kernel {
    &KERNEL
}

/// A divisor whose quotients need all bits of the product.
const DIVISOR: u32 = 7;
/// Lanes of a workgroup.
const LANES: usize = 64;
/// Answers of a word.
const ANSWERS: usize = 8;

/// What a device can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SelfTestPart {
    /// NaN and Inf are told from other numbers and read as 0.
    NonFinite,
    /// Scores are ordered by their bits.
    Order,
    /// Rounding to f16.
    Rounding,
    /// Division of 32-bit integers by a constant.
    Division,
    /// What one lane writes before a barrier, all lanes read after it.
    Barrier,
    /// Of equal keys the first is taken.
    Tie,
    /// Lanes are counted in order.
    Lane,
    /// The size of a subgroup is that of its sums.
    Subgroup,
}

impl SelfTestPart {
    /// The part in a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::NonFinite => "NaN and Inf",
            Self::Order => "order of scores",
            Self::Rounding => "rounding to f16",
            Self::Division => "integer division",
            Self::Barrier => "broadcast over a barrier",
            Self::Tie => "first of equal keys",
            Self::Lane => "numbers of lanes",
            Self::Subgroup => "subgroup size",
        }
    }
}

/// A wrong answer to a question of the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTestFault {
    /// What the device got wrong.
    pub part: SelfTestPart,
    /// The word that it was asked about.
    pub word: u32,
    /// The device's answer, as its bits.
    pub got: u32,
    /// The right answer, as its bits.
    pub expected: u32,
}

impl fmt::Display for SelfTestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, word, got, expected } = self;
        write!(f, "{} of {word:#010x}: {got:#x}, expected {expected:#x}", part.name())
    }
}

/// What came of [`Context::self_test`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// The first wrong answer of each part that has one; none when the device can be used.
    pub faults: Vec<SelfTestFault>,
    /// Lanes of a subgroup as shaders see them, where the device was made with `SUBGROUP`. No kernel
    /// depends on it.
    pub subgroup_size: Option<u32>,
}

impl SelfTest {
    /// Whether every answer was right.
    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }

    fn check(&mut self, part: SelfTestPart, word: u32, got: u32, expected: u32) {
        if got != expected && !self.faults.iter().any(|fault| fault.part == part) {
            self.faults.push(SelfTestFault { part, word, got, expected });
        }
    }
}

/// Words of every kind: numbers of both signs, zeros, NaN and Inf, hard roundings and dividends.
fn table() -> Vec<u32> {
    let mut words = vec![
        0x0000_0000,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_0000,
        0x7f80_0001,
        0xffff_ffff,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x0080_0000,
        0x8080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x477f_efff,
        0x477f_f000,
        0x3880_0000,
        0x387f_ffff,
        0x3300_0000,
        0x3300_0001,
        0x3f80_1000,
        0x3f80_3000,
        0xffff_fffe,
        0x0001_0004,
        0x7fff_ffff,
        0x8000_0001,
    ];
    let mut state = 1u32;
    // The last workgroup is not full.
    while words.len() < 3 * LANES + 5 {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        words.push(state ^ state >> 16);
    }
    // Equal keys in a workgroup, those of sinks included.
    for lane in [9, 33, 40] {
        words[LANES + lane] = 0x7f80_0000;
    }
    words
}

impl Context {
    /// Tries on the device what every kernel stands on: bits of NaN and Inf, the order of scores,
    /// roundings, division, barriers, ties and the size of subgroups. Two small dispatches, which
    /// take a few milliseconds besides the building of their shaders; for the start of a program
    /// that runs on hardware that nobody tried before.
    ///
    /// Records into `encoder`, as all of this library does; what it returns resolves once the caller
    /// has submitted that and polled the device. Nothing blocks.
    ///
    /// ```no_run
    /// # async fn start(context: &wgkv::gpu::Context) -> wgkv::Result<()> {
    /// use wgkv::wgpu;
    ///
    /// let mut encoder = context.device().create_command_encoder(&Default::default());
    /// let test = context.self_test(&mut encoder)?;
    /// context.queue().submit([encoder.finish()]);
    /// // Natively the caller polls; a browser does so itself.
    /// let _ = context.device().poll(wgpu::PollType::wait_indefinitely());
    /// for fault in &test.await?.faults {
    ///     eprintln!("this GPU cannot be used: {fault}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Recorder::dispatch`] and [`Recorder::finish`]; the future those of [`Readback`].
    pub fn self_test(
        &self,
        encoder: &mut wgpu::CommandEncoder,
    ) -> Result<impl Future<Output = Result<SelfTest>> + Send + use<>> {
        let words = table();
        let division = Magic::new(DIVISOR);
        let params = SelfTestParams {
            words: words.len() as u32,
            multiplier: division.multiplier,
            shift1: division.shift1,
            shift2: division.shift2,
        };
        let size = 4 * (words.len() * ANSWERS) as u64;
        let buffer = self.upload("self-test words", bytemuck::cast_slice(&words))?;
        let answers = self.create("self-test answers", size)?;
        let mut rec = Recorder::new(self, encoder);
        let slices = [&buffer, &answers].map(Slice::all);
        let groups = Groups(words.len().div_ceil(LANES) as u64);
        rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, groups)?;
        let answers = rec.read_back(slices[1])?;
        let sizes = match self.device().features().contains(wgpu::Features::SUBGROUP) {
            true => {
                let sizes = self.create("self-test sizes", 8 * LANES as u64)?;
                let slices = [&buffer, &sizes].map(Slice::all);
                rec.dispatch(&LANES_KERNEL, &Variant::default(), &params, &slices, Groups(1))?;
                Some(rec.read_back(slices[1])?)
            }
            false => None,
        };
        rec.finish()?;
        Ok(judge(words, answers, sizes))
    }
}

/// The place of a score in the order, once more and in the plainest way: NaN lowest, both zeros one.
fn order_key(score: f32) -> u32 {
    let bits = score.to_bits();
    match () {
        () if score.is_nan() => 0,
        () if score == 0.0 => 1 << 31,
        () if score < 0.0 => u32::MAX - bits,
        () => bits + (1 << 31),
    }
}

/// Compares the answers with what is right.
async fn judge(words: Vec<u32>, answers: Readback, sizes: Option<Readback>) -> Result<SelfTest> {
    let answers: Vec<u32> = bytemuck::pod_collect_to_vec(&answers.await?);
    let mut test = SelfTest { faults: Vec::new(), subgroup_size: None };
    for (place, (&word, got)) in words.iter().zip(answers.chunks_exact(ANSWERS)).enumerate() {
        let lane = place % LANES;
        let group: Vec<u32> = (place - lane..place - lane + LANES)
            // Lanes behind the table see its last word.
            .map(|place| words[place.min(words.len() - 1)])
            .collect();
        let finite = f32::from_bits(word).is_finite();
        let heard = group
            .iter()
            .zip(0u32..)
            .fold(0u32, |heard, (word, turn)| heard.wrapping_mul(33).wrapping_add(word ^ turn));
        let keys: Vec<u32> = group.iter().map(|word| order_key(f32::from_bits(*word))).collect();
        let highest = keys.iter().copied().max().unwrap_or(0);
        let first = keys.iter().position(|key| *key == highest).unwrap_or(0);
        test.check(SelfTestPart::NonFinite, word, got[0], u32::from(finite));
        // A device may flush subnormal numbers.
        if word & 0x7f80_0000 != 0 {
            test.check(SelfTestPart::NonFinite, word, got[1], if finite { word } else { 0 });
        }
        test.check(SelfTestPart::Order, word, got[2], keys[lane]);
        let half = half::f16::from_f32(f32::from_bits(word)).to_bits();
        test.check(SelfTestPart::Rounding, word, got[3], half.into());
        test.check(SelfTestPart::Division, word, got[4], word / DIVISOR);
        test.check(SelfTestPart::Barrier, word, got[5], heard);
        test.check(SelfTestPart::Tie, word, got[6], first as u32);
        test.check(SelfTestPart::Lane, word, got[7], lane as u32);
    }
    let Some(sizes) = sizes else { return Ok(test) };
    let sizes: Vec<u32> = bytemuck::pod_collect_to_vec(&sizes.await?);
    let size = sizes.first().copied().unwrap_or(0);
    test.subgroup_size = Some(size);
    let usable = size.is_power_of_two() && (4..=128).contains(&size);
    test.check(SelfTestPart::Subgroup, 0, u32::from(usable), 1);
    // Subgroups that share a workgroup evenly are full, and every lane has a neighbour's sum.
    let ones: u32 = words.iter().take(LANES).map(|word| word & 1).sum();
    let per_lane: u64 = sizes.chunks_exact(2).map(|pair| u64::from(pair[1] & 255)).sum();
    let lanes = u64::from(size.min(LANES as u32));
    test.check(SelfTestPart::Subgroup, 1, (per_lane / lanes.max(1)) as u32, ones);
    for pair in sizes.chunks_exact(2) {
        test.check(SelfTestPart::Subgroup, pair[1], pair[0], size);
        test.check(SelfTestPart::Subgroup, 2, pair[1] >> 8, lanes as u32);
    }
    Ok(test)
}
