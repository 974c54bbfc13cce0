//! The rotary embedding of keys, which a codec may take off before it looks for what the tokens of a
//! chunk have in common.
//!
//! Angles are counted in turns as integers, so that they are as exact at position 2^24 as at 1, and
//! sine and cosine are polynomials: every host and the shaders (`wgsl/common/rope.wgsl`) agree but
//! for the rounding of products that are fused. What is left of the angle is below 2e-9, and sine and
//! cosine are within 1.5e-7.

use std::sync::Arc;

use crate::error::{Error, Result};

/// Which channels turn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Channel i with channel i + n, n being the number of frequencies (GPT-NeoX, Llama in the form
    /// in which most files have it).
    #[default]
    Halves,
    /// Channel 2i with channel 2i + 1 (GPT-J, Llama as published).
    Interleaved,
}

impl Pairing {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Halves, Self::Interleaved];

    /// The name by which files and options know the pairing.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Halves => "halves",
            Self::Interleaved => "interleaved",
        }
    }
}

/// Largest inverse frequency either way.
const MAX_FREQUENCY: f32 = 1024.0;
/// The first 128 bits of 1 / (2 pi).
const TURNS_OF_RADIAN: [u64; 2] = [0x28be_60db_9391_054a, 0x7f09_d5f4_7d4d_3770];

/// A rotary position embedding (arXiv 2104.09864): at position t pair i of channels is turned by t
/// times inverse frequency i, in radians.
///
/// The model's own table is what counts: whatever scaling it has for long contexts belongs in the
/// frequencies. With fewer than half as many frequencies as channels the last channels stay as they
/// are (partial rotary embeddings).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pairing: Pairing,
    frequencies: Arc<[f32]>,
    /// Turns of each frequency in 2^-64.
    turns: Arc<[u64]>,
}

/// Frequencies are finite.
impl Eq for Rope {}

impl Rope {
    /// The embedding with these inverse frequencies, in radians a position.
    ///
    /// # Errors
    /// [`Error::Empty`] without frequencies; [`Error::Parameter`] for one that is not from -1024 to
    /// 1024.
    pub fn new(pairing: Pairing, frequencies: &[f32]) -> Result<Self> {
        if frequencies.is_empty() {
            return Err(Error::Empty { argument: "rope frequencies" });
        }
        let range = -MAX_FREQUENCY..=MAX_FREQUENCY;
        match frequencies.iter().find(|frequency| !range.contains(*frequency)) {
            None => Ok(Self {
                pairing,
                frequencies: frequencies.into(),
                turns: frequencies.iter().map(|frequency| turns(*frequency)).collect(),
            }),
            Some(frequency) => Err(Error::Parameter {
                argument: "rope frequency",
                got: f64::from(*frequency),
                expected: "a number from -1024 to 1024",
            }),
        }
    }

    /// The embedding of all `head_dim` channels with the inverse frequencies
    /// `theta^(-2i / head_dim)`, channels i and i + head_dim / 2 turning together.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a base that is not at least 1 and finite; [`Error::HeadDim`] for an
    /// odd number of channels or none.
    pub fn theta(theta: f64, head_dim: usize) -> Result<Self> {
        Self::with_theta(Pairing::Halves, theta, head_dim)
    }

    /// As [`Self::theta`] with a pairing, of the first `channels` channels.
    ///
    /// # Errors
    /// As [`Self::theta`].
    pub fn with_theta(pairing: Pairing, theta: f64, channels: usize) -> Result<Self> {
        if !(theta.is_finite() && theta >= 1.0) {
            let (argument, expected) = ("rope theta", "a number of at least 1");
            return Err(Error::Parameter { argument, got: theta, expected });
        }
        if channels == 0 || !channels.is_multiple_of(2) {
            return Err(Error::HeadDim { argument: "rope channels", got: channels });
        }
        let frequency = |pair: usize| theta.powf(-((2 * pair) as f64) / channels as f64) as f32;
        Self::new(pairing, &(0..channels / 2).map(frequency).collect::<Vec<f32>>())
    }

    /// Which channels turn together.
    pub const fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// The inverse frequencies, in radians a position.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Checks that rows of `head_dim` channels have a pair for each frequency.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] otherwise.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        let (got, max) = (self.frequencies.len() as u64, head_dim as u64 / 2);
        let argument = "number of rope frequencies";
        if got <= max { Ok(()) } else { Err(Error::OutOfRange { argument, got, min: 1, max }) }
    }

    /// Cosine and sine of the angle of a pair at a position.
    ///
    /// # Panics
    /// When there is no such frequency.
    pub fn turn_of(&self, pair: usize, position: u32) -> (f32, f32) {
        cos_sin((self.turns[pair].wrapping_mul(u64::from(position)) >> 32) as u32)
    }

    /// The channels of a pair.
    pub(crate) fn channels(&self, pair: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Halves => (pair, pair + self.frequencies.len()),
            Pairing::Interleaved => (2 * pair, 2 * pair + 1),
        }
    }

    /// Turns a row to its position.
    ///
    /// # Panics
    /// When the row is too short ([`Self::check`]).
    pub fn turn(&self, row: &mut [f32], position: u32) {
        for pair in 0..self.turns.len() {
            let (cos, sin) = self.turn_of(pair, position);
            let (a, b) = self.channels(pair);
            (row[a], row[b]) = (row[a] * cos - row[b] * sin, row[b] * cos + row[a] * sin);
        }
    }

    /// Turns a row back from its position.
    ///
    /// # Panics
    /// When the row is too short ([`Self::check`]).
    pub fn turn_back(&self, row: &mut [f32], position: u32) {
        for pair in 0..self.turns.len() {
            let (cos, sin) = self.turn_of(pair, position);
            let (a, b) = self.channels(pair);
            (row[a], row[b]) = (row[a] * cos + row[b] * sin, row[b] * cos - row[a] * sin);
        }
    }

    /// What shaders read for rows of `head_dim` channels, in groups of four words: first the number
    /// of pairs that lie in halves, then low and high words of the turns, two pairs a group; pairs
    /// without a frequency have none.
    pub(crate) fn words(rope: Option<&Self>, head_dim: usize) -> Vec<u32> {
        let mut words = vec![0; head_dim + 4];
        let Some(rope) = rope else { return words };
        if rope.pairing == Pairing::Halves {
            words[0] = rope.turns.len() as u32;
        }
        for (pair, turns) in words[4..].chunks_exact_mut(2).zip(rope.turns.iter()) {
            pair.copy_from_slice(&[*turns as u32, (*turns >> 32) as u32]);
        }
        words
    }
}

/// Turns in 2^-64 of an angle in radians, modulo 1.
fn turns(angle: f32) -> u64 {
    let bits = angle.to_bits();
    let exponent = (bits >> 23 & 255).max(1);
    let mantissa = u128::from(bits & 0x7f_ffff | if bits >> 23 & 255 > 0 { 1 << 23 } else { 0 });
    let [high, low] = TURNS_OF_RADIAN.map(u128::from);
    // The angle is mantissa * 2^(exponent - 150), with an exponent below 150.
    let product = mantissa * high + ((mantissa * low) >> 64);
    let turns = product.checked_shr(150 - exponent).unwrap_or(0) as u64;
    if angle < 0.0 { turns.wrapping_neg() } else { turns }
}

/// Cosine and sine of an angle given in 2^-32 turns.
fn cos_sin(phase: u32) -> (f32, f32) {
    // The nearest quarter turn, and what is left of at most an eighth.
    let quarter = phase.wrapping_add(1 << 29) >> 30;
    let rest = phase.wrapping_sub(quarter << 30) as i32;
    let x = rest as f32 * RADIANS;
    let z = x * x;
    // The polynomials of Cephes' sinf and cosf (Moshier).
    let sin = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
    let cos =
        ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * (z * z) - 0.5 * z + 1.0;
    match quarter {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

/// Radians of 2^-32 turns.
const RADIANS: f32 = 1.462_918_1e-9;

#[cfg(test)]
mod tests {
    use super::{Pairing, Rope, turns};

    #[test]
    fn angles_are_exact_at_far_positions() {
        let frequencies: Vec<f32> = (0..64)
            .map(|i| 500_000f64.powf(-f64::from(i) / 64.0) as f32)
            .chain([-0.7, 1024.0, 3.3, 1e-30, 0.0])
            .collect();
        let rope = Rope::new(Pairing::Halves, &frequencies).expect("an embedding");
        let far = (0..200u32).map(|i| (1 << 24) - i * 83_000);
        let mut worst = 0.0f64;
        for position in (0..100).chain(far).chain([1 << 24, u32::MAX]) {
            for (pair, frequency) in frequencies.iter().enumerate() {
                // Products up to 2^24 are exact in f64.
                if position > 1 << 24 && frequency.abs() > 1e-20 {
                    continue;
                }
                let angle = f64::from(*frequency) * f64::from(position);
                let (cos, sin) = rope.turn_of(pair, position);
                let apart = (f64::from(cos) - angle.cos()).abs();
                worst = worst.max(apart).max((f64::from(sin) - angle.sin()).abs());
            }
        }
        println!("worst {worst:e}");
        assert!(worst < 1.5e-7, "{worst}");
    }

    #[test]
    fn turns_are_those_of_radians() {
        assert_eq!(turns(0.0), 0);
        assert_eq!(turns(1.0) >> 32, 0x28be_60db);
        assert_eq!(turns(-1.0), turns(1.0).wrapping_neg());
        assert_eq!(turns(f32::MIN_POSITIVE), 0);
    }

    #[test]
    fn rows_come_back_and_channels_without_a_frequency_stay() {
        for pairing in Pairing::ALL {
            let rope = Rope::with_theta(pairing, 1e4, 24).expect("an embedding");
            let row: Vec<f32> = (0..32).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut turned = row.clone();
            rope.turn(&mut turned, 12_345);
            assert_eq!(turned[24..], row[24..]);
            let mut back = turned.clone();
            rope.turn_back(&mut back, 12_345);
            for ((a, b), turned) in row.iter().zip(&back).zip(&turned).take(24) {
                assert!((a - b).abs() < 1e-6 && a != turned);
            }
        }
    }

    #[test]
    fn what_is_no_embedding_is_refused() {
        assert!(Rope::new(Pairing::Halves, &[]).is_err());
        assert!(Rope::new(Pairing::Halves, &[1.0, f32::NAN]).is_err());
        assert!(Rope::new(Pairing::Halves, &[2e3]).is_err());
        assert!(Rope::theta(0.5, 64).is_err() && Rope::theta(f64::NAN, 64).is_err());
        assert!(Rope::theta(1e4, 7).is_err() && Rope::theta(1e4, 0).is_err());
        let rope = Rope::theta(1e4, 64).expect("an embedding");
        assert!(rope.check(64).is_ok() && rope.check(63).is_err());
    }
}
