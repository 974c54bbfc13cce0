//! The choices that make a codec, and the combinations that have names.

use super::{Bits, Family, Metadata};

/// How the length of a decoded token is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gain {
    /// Decoding brings the token's centroids c to norm sqrt(d); the stored `s2` is the token's own.
    #[default]
    TokenNorm,
    /// The stored scale is `s2 (y.y) / (y.c)`, so that the error is orthogonal to the token y and
    /// dot products with it are unbiased (the scale adjustment of arXiv 2505.18231). Free norms need it.
    Unbiased,
    /// The stored scale is `s2 |y| / |c|`: the decoded token has the norm of the token. Better for keys,
    /// the more the fewer bits they have: attention takes exponentials of their products, in which the
    /// noise that [`Self::Unbiased`] amplifies outweighs the bias that it takes away.
    NormPreserving,
}

/// Where the mean of a chunk is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MeanDomain {
    /// As it is.
    #[default]
    Plain,
    /// Transformed like the tokens, which spreads a few large channels over all of them, so that 4
    /// bits resolve the rest.
    Hadamard,
}

/// The choices that make a codec; each is independent of the others. Keys are taken as they come,
/// after their rotary embedding where the model has one; a codec that knows the embedding
/// ([`Codec::with_rope`](crate::nsnquant::Codec::with_rope)) takes it off again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Scheme {
    /// Rate of the codes.
    pub bits: Bits,
    /// What their indices stand for.
    pub family: Family,
    /// Form of scales and means.
    pub metadata: Metadata,
    /// How the length of a decoded token is set.
    pub gain: Gain,
    /// Where the mean is stored.
    pub mean: MeanDomain,
    /// Seed of the signs that channels get before the Hadamard transform, if they get any.
    pub signs: Option<u32>,
}

/// Combinations that have names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// What the method's description gives: unit books, 16-bit scales and means used unrounded on
    /// the way to the codes, 1 or 2 bits.
    Compat,
    /// Plain books with the gain folded into `s2`, 4-bit scales and means each quantised before the
    /// next step uses it, the mean in the Hadamard domain; 1 to 4 bits. The default: it costs a model
    /// less at equal bits.
    #[default]
    Tuned,
    /// As published (arXiv 2505.18231): unit books with the gain folded into `s2`, `s1` and the mean
    /// in 4 bits, 1 or 2 bits. Meant for keys whose rotary embedding the codec knows.
    Paper,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::Compat, Self::Tuned, Self::Paper];

    /// The name by which files and options know the profile.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compat => "compat",
            Self::Tuned => "tuned",
            Self::Paper => "paper",
        }
    }

    /// The scheme of keys of a profile at a rate: that of values ([`Self::scheme`]), but keys of
    /// [`Self::Tuned`] keep their norm.
    pub const fn key_scheme(self, bits: Bits) -> Scheme {
        let mut scheme = self.scheme(bits);
        if matches!(self, Self::Tuned) {
            scheme.gain = Gain::NormPreserving;
        }
        scheme
    }

    /// The schemes of keys and of values at these rates, whose channels get signs of one seed, if any.
    pub const fn schemes(self, keys: Bits, values: Bits, signs: Option<u32>) -> [Scheme; 2] {
        let mut schemes = [self.key_scheme(keys), self.scheme(values)];
        schemes[0].signs = signs;
        schemes[1].signs = signs;
        schemes
    }

    /// The scheme of a profile at a rate, for values; keys have [`Self::key_scheme`]. No page has
    /// rates above 2 bits in [`Self::Compat`] and [`Self::Paper`].
    pub const fn scheme(self, bits: Bits) -> Scheme {
        match self {
            Self::Compat => Scheme {
                bits,
                family: Family::Unit,
                metadata: Metadata::Half,
                gain: Gain::TokenNorm,
                mean: MeanDomain::Plain,
                signs: None,
            },
            Self::Tuned => Scheme {
                bits,
                family: Family::Plain,
                metadata: Metadata::Four,
                gain: Gain::Unbiased,
                mean: MeanDomain::Hadamard,
                signs: None,
            },
            Self::Paper => Scheme {
                bits,
                family: Family::Unit,
                metadata: Metadata::Linear,
                gain: Gain::Unbiased,
                mean: MeanDomain::Plain,
                signs: None,
            },
        }
    }
}
