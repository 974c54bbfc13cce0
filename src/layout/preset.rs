//! Choices that go together, by the bits that they take.

use super::{Bits, PageLayout, Profile};
use crate::error::{Error, Result};

/// How a cache packs its rows and which it keeps raw: one of the combinations that were found best at
/// their size on real models (the [guide](crate::guide::choosing) has what each costs).
///
/// The bits in the names are those of an element of a packed row, scales and means counted, at 64
/// channels and more a head, rounded up to a quarter; keys and values have equally many. What stays
/// raw ([`Self::sinks`], [`Self::recent`] and the tail of less than a chunk) takes 16 bits an element
/// and comes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Preset {
    /// Rate of keys.
    pub k_bits: Bits,
    /// Rate of values.
    pub v_bits: Bits,
    /// How rows are packed at these rates.
    pub profile: Profile,
    /// Tokens that are packed together.
    pub chunk: usize,
    /// First tokens that stay raw.
    pub sinks: usize,
    /// Newest tokens that stay raw.
    pub recent: usize,
    /// Whether keys are packed under a scale of each head's channels.
    pub key_scale: bool,
}

impl Preset {
    /// 1 bit: for contexts where anything less compressed does not fit.
    pub const BITS_1_25: Self = Self { recent: 64, ..Self::new(Bits::One, Bits::One) };
    /// Keys at 2 bits, values at 1.
    pub const BITS_1_75: Self = Self::new(Bits::Two, Bits::One);
    /// 2 bits.
    pub const BITS_2_25: Self = Self::new(Bits::Two, Bits::Two);
    /// Keys at 3 bits, values at 2: the default.
    pub const BITS_2_75: Self = Self::new(Bits::Three, Bits::Two);
    /// Keys at 4 bits, values at 2: keys carry most of the loss.
    pub const BITS_3_25: Self = Self::new(Bits::Four, Bits::Two);
    /// 4 bits.
    pub const BITS_4_25: Self = Self::new(Bits::Four, Bits::Four);

    /// Every preset with the bits of its name, the smallest first.
    pub const ALL: [(f64, Self); 6] = [
        (1.25, Self::BITS_1_25),
        (1.75, Self::BITS_1_75),
        (2.25, Self::BITS_2_25),
        (2.75, Self::BITS_2_75),
        (3.25, Self::BITS_3_25),
        (4.25, Self::BITS_4_25),
    ];

    const fn new(k_bits: Bits, v_bits: Bits) -> Self {
        let (profile, key_scale) = (Profile::Tuned, true);
        Self { k_bits, v_bits, profile, chunk: 64, sinks: 4, recent: 16, key_scale }
    }

    /// The largest preset of at most `target` bits an element.
    ///
    /// # Errors
    /// [`Error::Parameter`] for less than 1.25 bits or no number.
    pub fn for_bits(target: f64) -> Result<Self> {
        let expected = "a number of at least 1.25";
        let fault = Error::Parameter { argument: "target bits", got: target, expected };
        let fits = |(bits, _): &&(f64, Self)| *bits <= target;
        Self::ALL.iter().rev().find(fits).map(|(_, preset)| *preset).ok_or(fault)
    }

    /// Layouts of packed keys and values.
    ///
    /// # Errors
    /// As [`PageLayout::with`].
    pub fn layouts(&self, head_dim_k: usize, head_dim_v: usize) -> Result<[PageLayout; 2]> {
        let layout = |argument, head_dim, bits| {
            PageLayout::with(argument, head_dim, self.profile.scheme(bits), self.chunk)
        };
        Ok([
            layout("head_dim_k", head_dim_k, self.k_bits)?,
            layout("head_dim_v", head_dim_v, self.v_bits)?,
        ])
    }

    /// Bits of an element of a packed row of these channels, scales and means counted, keys and values
    /// together.
    ///
    /// # Errors
    /// As [`Self::layouts`].
    pub fn bits_per_element(&self, head_dim_k: usize, head_dim_v: usize) -> Result<f64> {
        let [keys, values] = self.layouts(head_dim_k, head_dim_v)?;
        let bits = |page: &PageLayout| 8.0 * page.data_bytes() as f64 / page.chunk() as f64;
        Ok((bits(&keys) + bits(&values)) / (head_dim_k + head_dim_v) as f64)
    }
}

/// [`Preset::BITS_2_75`].
impl Default for Preset {
    fn default() -> Self {
        Self::BITS_2_75
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;

    #[test]
    fn names_are_the_bits_rounded_up() {
        for (name, preset) in Preset::ALL {
            for dim in [64, 80, 96, 128, 256] {
                let bits = preset.bits_per_element(dim, dim).expect("bits");
                assert!(bits <= name && bits > name - 0.25, "{name} at {dim}: {bits}");
            }
            assert_eq!(Preset::for_bits(name).ok(), Some(preset));
            assert_eq!(Preset::for_bits(name + 0.2).ok(), Some(preset));
        }
        assert_eq!(Preset::for_bits(f64::INFINITY).ok(), Some(Preset::BITS_4_25));
        let refused = [1.2, -1.0, f64::NAN].map(|target| Preset::for_bits(target).is_err());
        assert_eq!(refused, [true; 3]);
        let exact = Preset::default().bits_per_element(64, 64).expect("bits");
        assert!((exact - 2.7109375).abs() < 1e-12, "{exact}");
        assert!(Preset::default().bits_per_element(65, 64).is_err());
    }
}
