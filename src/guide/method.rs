//! What is computed, in words. The modules say the same stage by stage, with accuracy and order of sums;
//! here is the thread that goes through them.
//!
//! # What a cache is
//!
//! A transformer that writes keeps, for each layer and each KV head, a key and a value of every token so
//! far: two vectors of `d` channels. For a new token its query `q` gives every key a logit
//! `<q, k> / sqrt(d)`; their exponentials, divided by their sum, are the weights of the mean of the values that
//! comes out. So the cache grows with the text, and all of it is read for every token. It gets smaller in
//! two ways here: fewer tokens, and fewer bits for each.
//!
//! # Which tokens stay: NestedKV
//!
//! ([`crate::nestedkv`], arXiv 2605.26678.) A token is worth keeping if its key stands out from the others:
//! what is like everything else can be stood in for. Keys are brought to length 1; then
//!
//! 1. three **anchors** are their means over the whole prompt, over the token's block (128 to 256 tokens),
//!    and over the 64 tokens before it;
//! 2. an **anomaly** at each scale is minus the dot product of the key with the anchor, stretched over the
//!    row to `[0, 1]`;
//! 3. a **blend** weighs the scales: each head prefers the scale at which its highest and lowest tenths lie
//!    furthest apart (a softmax over three gaps, with a prior);
//! 4. the **surprise** of a token is how much its three anomalies disagree. A **gate** lets surprising tokens
//!    have the largest of the three in place of the blend.
//!
//! The highest scores stay, equal ones by lower position, the first few tokens (**sinks**) in any case. The
//! same count may stay in each head ([`Budget::Uniform`](crate::nestedkv::Budget)), or a layer's total is
//! shared out: every head is sure of a floor, and all other tokens of all heads compete for what is left
//! ([`Budget::Adaptive`](crate::nestedkv::Budget)). Heads are then of different lengths, in memory too.
//! It happens once, at the end of the prompt; what comes later stays.
//!
//! # How a token is packed: NSNQuant
//!
//! ([`crate::nsnquant`], arXiv 2505.18231.) A code of few bits needs to know how its input is distributed.
//! Instead of measuring that for each model, a chunk of tokens is brought to one known distribution:
//!
//! 1. every token is divided by its length over `sqrt(d)` (**s1**);
//! 2. the chunk's mean (**o**) is taken off, channel by channel;
//! 3. every token is divided by its length again (**s2**);
//! 4. a **Hadamard transform** mixes all channels: each becomes a sum of all with signs, which is close to
//!    normal, whatever the channels were;
//! 5. pieces of 2 to 8 channels are replaced by the number of the nearest entry of a **book** that was
//!    trained on normal noise once and for all.
//!
//! Decoding goes back the same way. A token at 2 bits of 64 channels is 16 bytes, and its share of scales and
//! means is less than 2.
//!
//! What the library adds to that, each a choice of its own ([`Scheme`](crate::layout::Scheme)):
//!
//! - **books of 1, 2, 3 and 4 bits** whose entries have lengths of their own ("plain" or free-norm books; the
//!   published method has "unit" books of 1 and 2 bits, whose entries all have one length), so that keys and values
//!   can have different rates;
//! - a **gain** folded into s2: values come back without bias, keys with their length;
//! - **scales and means in 4 bits**, in closed loop: each is stored before the next step is computed, with what
//!   was stored, so that later steps make up for its rounding;
//! - the **mean in the transformed domain**, where a few large channels are spread over all;
//! - **key scales**: a factor for each channel of a head, fixed from its first chunks. Keys are divided by it,
//!   queries multiplied;
//! - keys **without their rotary embedding** ([`Codec::with_rope`](crate::nsnquant::Codec::with_rope)): a
//!   mean of keys says more before every position has turned them by another angle.
//!
//! # How attention reads the codes
//!
//! ([`crate::attention`].) The transform `H` keeps dot products: `<q, H^T c> = <H q, c>`. So the query is
//! transformed once, and the logit of a token is `s1 (s2 <H q, c> + <q, o>)`, in which `<q, o>` is one number a
//! chunk. The output needs the transform once as well: `H^T` of the weighted codes, plus the chunks' means,
//! each times the sum of its weights. Nothing is unpacked. With a rotary embedding taken off, `<q, R_t o>` takes
//! a cosine and a sine for each pair of channels and token.
//!
//! Sinks, packed chunks and raw rows are one softmax: every part gives its largest logit, its sum of weights
//! and its weighted sum of values, and parts are merged in a fixed order (arXiv 2307.08691). The logarithm of the
//! sum comes out beside the output, so that an engine can merge further parts.
//!
//! # What raw rows are for
//!
//! The first tokens get much of the weight whatever the text, and the newest are looked at most; both stay as
//! they came. A chunk is packed once enough newer tokens lie behind it ([`crate::cache::plan`]), so the
//! packed form depends on the tokens alone, not on how they came.
//!
//! # Words
//!
//! - **KV head, query head**: a layer has one or several heads of keys and values; each serves one or several
//!   heads of queries (grouped attention). A **row** is one KV head of one sequence, with all its tokens.
//! - **Prompt, decoding**: the tokens that are read at once before the model writes, and writing, a token a step.
//! - **Eviction, budget**: dropping tokens for good, and how many stay in a head. Where heads keep different
//!   counts, what is left is **ragged**.
//! - **Chunk, page**: tokens that are packed together (64 by default), and the memory that a packed chunk, or as
//!   many raw rows, takes in a pool.
//! - **Raw**: not packed, f16 or bf16. **Sinks** are the first tokens, **recent** ones the newest, the **tail**
//!   what fills no chunk yet; all three are raw.
//! - **Scale, mean**: the numbers beside the codes that undo steps 1 to 3 above; a **key scale** is one more for
//!   each channel of a head.
//! - **Book**: the list of vectors that codes number. A **profile** says which books, and how scales and means
//!   are stored ([`Profile`](crate::layout::Profile)); a **preset** is a profile with bits for keys and for
//!   values and the counts of raw tokens, named by its **bits an element**, all counted
//!   ([`Preset`](crate::layout::Preset)).
//! - **Rotary embedding** (RoPE): the rotation of pairs of channels, by an angle for each position, through which
//!   keys and queries know where they stand.
//! - **Fork, trim**: a second sequence that shares what the first one holds, and taking tokens back, such as those
//!   of a draft that another model wrote ahead and that were not accepted.
//! - **Window, soft cap**: limits that some models put on how far back a query looks, and on the size of logits.
//!   **Log-sum-exp**: the logarithm of the sum of the weights, with which parts of an attention are merged.
//! - **Perplexity**: e to the mean loss a token; by how much it grows says what a smaller cache costs a model.
