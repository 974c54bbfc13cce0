//! The command line.

use std::path::PathBuf;

use clap::{ArgAction, Args, Command, Parser, Subcommand, ValueEnum};

use crate::conformance::ConformanceArgs;
use crate::sweep::SweepArgs;

/// Keeps a transformer's KV cache small: evicts tokens (NestedKV), packs the rest to 1 to 4 bits
/// (NSNQuant), attends to the packed form, on a GPU or the CPU.
#[derive(Debug, Parser)]
#[command(
    name = "wgkv",
    version,
    disable_help_flag = true,
    max_term_width = 100,
    after_help = "\
Example: evict half of the tokens, pack the rest and report bytes and errors
  wgkv compress kv.safetensors -o packed.safetensors
wgkv COMMAND --help (or --help-all) has its options. Files are safetensors:
layers.<i>.k, .v [B, H, N, D], .q [B, Hq, Nq, D], or mlx-lm's prompt caches."
)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options of every verb.
#[derive(Args, Debug)]
pub struct Common {
    /// auto (GPU, else CPU), vulkan, metal, dx12, gl or cpu
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "NAME",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        display_order = 900
    )]
    pub backend: Backend,
    /// Take the adapter whose name contains this
    #[arg(long, global = true, value_name = "NAME", display_order = 901, hide = true)]
    pub adapter: Option<String>,
    /// Only these layers, as in 0,7,15
    #[arg(long, global = true, value_name = "LIST", value_delimiter = ',', display_order = 902)]
    pub layers: Option<Vec<u32>>,
    /// Print JSON: one object (replay, sweep: one a line)
    #[arg(long, global = true, display_order = 903)]
    pub json: bool,
    /// Print help (--help-all: with every option)
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 904)]
    help: Option<bool>,
    /// Print help with every option
    #[arg(long, global = true, action = ArgAction::HelpShort, display_order = 905, hide = true)]
    help_all: Option<bool>,
}

/// How the program ends.
const CODES: &str =
    "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 no adapter, or it was lost";

/// The command line's grammar. Help keeps to a screen: `hide` marks what most users never ask for, and
/// `all` shows that too.
pub fn grammar(all: bool) -> Command {
    let mut command = <Cli as clap::CommandFactory>::command();
    if all {
        let more = command.get_after_help().map(|text| format!("{text}\n{CODES}"));
        command = command.mut_args(|arg| arg.hide(false)).after_help(more.unwrap_or_default());
    } else {
        // Options of every verb stand in the help of each.
        let short = "{about}\n\n{usage-heading} {usage}\n\nCommands:\n{subcommands}{after-help}";
        command = command.help_template(short);
    }
    let layers = command.get_arguments().find(|arg| arg.get_id() == "layers").cloned();
    command.mut_subcommands(|verb| {
        // These read no layers.
        let none = ["doctor", "budgets", "sweep", "conformance"].contains(&verb.get_name());
        let layers = layers.clone().filter(|_| none).map(|arg| arg.hide(true));
        let verb = verb.mut_args(|arg| {
            // A negative number is refused as a number out of range, not as an option that there is not.
            let valued = arg.get_long().is_some() && arg.get_action().takes_values();
            let arg = if valued { arg.allow_negative_numbers(true) } else { arg };
            let hidden = arg.is_hide_set() && !all;
            arg.hide(hidden)
        });
        verb.args(layers)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    Auto,
    Vulkan,
    Metal,
    Dx12,
    Gl,
    Cpu,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List adapters, the limits that matter, and what will run where
    #[command(after_help = "Example:\n  wgkv doctor --json")]
    Doctor,
    /// Score every token (NestedKV); a high score is worth keeping
    #[command(after_help = "Example:\n  wgkv score kv.safetensors -o scores.safetensors --parts")]
    Score(ScoreArgs),
    /// Keep the best tokens of each head
    #[command(after_help = "\
Example: a quarter of the tokens, shared out over the heads by score
  wgkv evict kv.safetensors -o kept.safetensors --keep 0.25 --heads adaptive")]
    Evict(EvictArgs),
    /// Share a total of tokens out over heads, by head.<j> f32 [n_j]
    #[command(after_help = "Example:\n  wgkv budgets heads.safetensors --total 1024 --json")]
    Budgets(BudgetsArgs),
    /// Pack keys and values to 1 to 4 bits (NSNQuant)
    #[command(after_help = "\
Example: 2 bits for keys and values
  wgkv quantize kv.safetensors -o packed.safetensors --profile tuned --bits 2
Example: at most 2.25 bits an element, scales and means counted
  wgkv quantize kv.safetensors -o packed.safetensors --target-bits 2.25")]
    Quantize(QuantizeArgs),
    /// Unpack a packed cache
    #[command(after_help = "Example:\n  wgkv dequantize packed.safetensors -o kv.safetensors")]
    Dequantize(DequantizeArgs),
    /// Evict, pack, and report bytes and errors against the input
    #[command(after_help = "\
Example: keep 30 % of the tokens
  wgkv compress kv.safetensors -o packed.safetensors --keep 0.3")]
    Compress(CompressArgs),
    /// Attend with queries to a dense, evicted or packed cache
    #[command(after_help = "\
Example:
  wgkv attend queries.safetensors packed.safetensors -o out.safetensors --causal")]
    Attend(AttendArgs),
    /// Run appends, trims and forks on a packed cache, step by step
    #[command(after_help = "\
Example: ops.json holds [{\"append\": 300}, {\"trim\": 5}, {\"fork\": \"a\"}, {\"use\": \"a\"}]
  wgkv replay kv.safetensors --layers 7 --ops ops.json -o steps.safetensors --json")]
    Replay(ReplayArgs),
    /// Show what a file holds
    #[command(after_help = "Example:\n  wgkv inspect packed.safetensors")]
    Inspect(InspectArgs),
    /// Time the methods over shapes, beside the pace of a copy
    #[command(after_help = "\
Example: scoring and attention from 1k to 16k tokens, with plots
  wgkv sweep --methods score,attend-raw,attend-packed --tokens 1024,4096,16384 -o sweep")]
    Sweep(SweepArgs),
    /// Check a GPU: every stage against the CPU path and f64
    #[command(after_help = "\
Example: a minute of random cases after the fixed ones, and a report to send in
  wgkv conformance --time 60 -o report

A seed, the version and the stage make a case; report/*.case.json runs it again with --case.")]
    Conformance(ConformanceArgs),
}

/// Constants of the score.
#[derive(Args, Debug)]
pub struct Scoring {
    /// Tokens of the trailing window
    #[arg(long, value_name = "N", default_value_t = 64, hide = true)]
    pub window: u32,
    /// Sharpness of the weights of the three scales
    #[arg(long, value_name = "X", default_value_t = 3.0, hide = true)]
    pub beta: f32,
    /// Surprise at which the gate is half open
    #[arg(long, value_name = "X", default_value_t = 0.6, hide = true)]
    pub tau: f32,
    /// Steepness of the gate
    #[arg(long, value_name = "X", default_value_t = 10.0, hide = true)]
    pub kappa: f32,
    /// Prior weights of the sequence, block and window scale
    #[arg(long, value_name = "S,E,C", default_value = "0.4,0.4,0.2", value_parser = prior, allow_hyphen_values = true, hide = true)]
    pub prior: Prior,
    /// Ignore surprise below the mean (the paper's option)
    #[arg(long, hide = true)]
    pub rectify: bool,
}

/// Three prior weights.
#[derive(Clone, Copy, Debug)]
pub struct Prior(pub [f32; 3]);

fn prior(text: &str) -> Result<Prior, String> {
    let values = text
        .split(',')
        .map(|part| part.trim().parse::<f32>().map_err(|e| format!("{part:?}: {e}")))
        .collect::<Result<Vec<_>, _>>()?;
    let count = values.len();
    values.try_into().map(Prior).map_err(|_| format!("{count} numbers, expected 3"))
}

/// How many tokens stay.
#[derive(Args, Debug)]
pub struct Keeping {
    /// Tokens a head keeps (adaptive: on average)
    #[arg(long, value_name = "N", conflicts_with = "keep")]
    pub budget: Option<u32>,
    /// Fraction of the tokens that stays [default: 0.5]
    #[arg(long, value_name = "R")]
    pub keep: Option<f64>,
    /// uniform or adaptive (by score) [default: uniform]
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value = "uniform",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub heads: Heads,
    /// Share of its part that every head is sure of (adaptive)
    #[arg(long, value_name = "A", default_value_t = 0.2, hide = true)]
    pub safeguard: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Heads {
    Uniform,
    Adaptive,
}

/// The first tokens.
#[derive(Args, Debug)]
pub struct Sinks {
    /// First tokens of a sequence that always stay, unpacked
    #[arg(long, value_name = "N", default_value_t = 4, hide = true)]
    pub sinks: u32,
}

/// How keys and values are packed.
#[derive(Args, Debug)]
pub struct Packing {
    /// At most 1.25, 1.75, 2.25, 2.75 (the default), 3.25 or 4.25 bits an element
    #[arg(
        long,
        value_name = "X",
        conflicts_with_all = ["bits", "k_bits", "v_bits", "profile", "codebook"]
    )]
    pub target_bits: Option<f64>,
    /// Code bits a value: 1 or 2, tuned: 1 to 4
    #[arg(long, value_name = "B")]
    pub bits: Option<u32>,
    /// Code bits per value of keys [default: --bits, else 2; tuned: 3]
    #[arg(long, value_name = "B", hide = true)]
    pub k_bits: Option<u32>,
    /// Code bits per value of values [default: --bits, else 2]
    #[arg(long, value_name = "B", hide = true)]
    pub v_bits: Option<u32>,
    /// Tokens that are packed together [default: 64]
    #[arg(long, value_name = "R", hide = true)]
    pub chunk: Option<u32>,
    /// Newest tokens that stay unpacked [default: 16; 64 with --target-bits 1.25]
    #[arg(long, value_name = "N", hide = true)]
    pub recent: Option<u32>,
    /// tuned (4-bit scales, default), compat (16-bit, default with --bits), paper
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub profile: Option<Profile>,
    /// on or off: pack keys under a scale of each head's channels, fixed from its first chunks
    /// [default: on with the profile tuned, else off]
    #[arg(long, value_enum, value_name = "S", hide_possible_values = true, hide = true)]
    pub key_scale: Option<Switch>,
    /// Give channels fixed random signs of this seed before they are transformed [default: none]
    #[arg(long, value_name = "SEED", hide = true)]
    pub signs: Option<u32>,
    #[command(flatten)]
    pub rope: RopeArgs,
    /// Codebooks codebook_signed and codebook_magnitude, f32 [256, 8] [default: built in]
    #[arg(long, value_name = "FILE", hide = true)]
    pub codebook: Option<PathBuf>,
}

/// The rotary embedding that keys come with, which packing takes off and unpacking puts on again, at
/// the position of each token.
#[derive(Args, Debug)]
pub struct RopeArgs {
    /// Base of the rotary embedding of the keys, whose packing takes it off; all channels turn
    #[arg(long, value_name = "BASE", hide = true)]
    pub rope_theta: Option<f64>,
    /// The same by its inverse frequencies: a JSON list of numbers, in radians a token; with fewer than
    /// D/2 the last channels do not turn
    #[arg(long, value_name = "FILE", conflicts_with = "rope_theta", hide = true)]
    pub rope_frequencies: Option<PathBuf>,
    /// Which channels turn together: halves (i and i + n of n pairs) or interleaved (2i and 2i + 1)
    /// [default: halves]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true, hide = true)]
    pub rope_pairing: Option<Pairing>,
    /// Keys have no rotary embedding (the profile paper asks for one otherwise)
    #[arg(long, conflicts_with_all = ["rope_theta", "rope_frequencies"], hide = true)]
    pub no_rope: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pairing {
    Halves,
    Interleaved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    Compat,
    Tuned,
    Paper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// The file to write.
#[derive(Args, Debug)]
pub struct Out {
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct ScoreArgs {
    /// File with layers.<i>.k
    pub input: PathBuf,
    #[command(flatten)]
    pub out: Out,
    #[command(flatten)]
    pub scoring: Scoring,
    /// Write the three scales and their blend too
    #[arg(long)]
    pub parts: bool,
}

#[derive(Args, Debug)]
pub struct EvictArgs {
    /// File with layers.<i>.k and layers.<i>.v
    pub input: PathBuf,
    #[command(flatten)]
    pub out: Out,
    #[command(flatten)]
    pub scoring: Scoring,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub sinks: Sinks,
}

#[derive(Args, Debug)]
pub struct BudgetsArgs {
    /// File with head.<j> f32 [n_j]
    pub input: PathBuf,
    /// Tokens to share out
    #[arg(long, value_name = "N")]
    pub total: u64,
    /// Share of its part that every head is sure of
    #[arg(long, value_name = "A", default_value_t = 0.2)]
    pub safeguard: f64,
}

#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// File with layers.<i>.k and layers.<i>.v, or an evicted file
    pub input: PathBuf,
    #[command(flatten)]
    pub out: Out,
    #[command(flatten)]
    pub sinks: Sinks,
    #[command(flatten)]
    pub packing: Packing,
    /// Write the codes as tensors in place of a packed cache
    #[arg(long)]
    pub dump_codes: bool,
}

#[derive(Args, Debug)]
pub struct DequantizeArgs {
    /// Packed cache
    pub input: PathBuf,
    #[command(flatten)]
    pub out: Out,
    /// Type of the elements to write; f16 cuts off at 65504
    #[arg(long, value_enum, default_value = "f16")]
    pub dtype: Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wide {
    F16,
    F32,
}

#[derive(Args, Debug)]
pub struct CompressArgs {
    /// File with layers.<i>.k and .v, and .q if there are queries
    pub input: PathBuf,
    #[command(flatten)]
    pub out: Out,
    #[command(flatten)]
    pub scoring: Scoring,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub sinks: Sinks,
    #[command(flatten)]
    pub packing: Packing,
    /// Queries are the newest tokens, each sees what is before it
    #[arg(long)]
    pub causal: bool,
    /// Draw what stayed, errors and bytes into this SVG file
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct AttendArgs {
    /// File with layers.<i>.q
    pub queries: PathBuf,
    /// Dense, evicted or packed cache [default: the file of the queries]
    pub cache: Option<PathBuf>,
    #[command(flatten)]
    pub out: Out,
    /// Queries are the newest tokens, each sees what is before it
    #[arg(long)]
    pub causal: bool,
    /// Factor of the logits [default: 1/sqrt(D) of the keys]
    #[arg(long, value_name = "X")]
    pub scale: Option<f32>,
}

#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// File with layers.<i>.k and layers.<i>.v, whose rows are taken in order
    pub input: PathBuf,
    /// JSON list of {"append": n}, {"trim": n}, {"fork": name}, {"use": name} or {"free": name}
    #[arg(long, value_name = "FILE")]
    pub ops: PathBuf,
    #[command(flatten)]
    pub out: Out,
    #[command(flatten)]
    pub sinks: Sinks,
    #[command(flatten)]
    pub packing: Packing,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Any file that this program reads or writes, or an mlx-lm prompt cache
    pub input: PathBuf,
}
