//! `conformance`: whether the adapter computes what it should.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use wgkv::Error;
use wgkv::conformance::{Case, Config, Fixed, Outcome, Report, StageReport, Suite, stages, wait};

use crate::args::Common;
use crate::engine::{Engine, Gpu};
use crate::file::{Fail, make_folder, said, shown, told, try_place, write_whole};
use crate::report::{print, progress, say, table};

#[derive(Args, Debug)]
pub struct ConformanceArgs {
    /// Of the fixed cases one or two of each stage, and no random ones unless --cases asks for them
    #[arg(long, conflicts_with = "case")]
    pub quick: bool,
    /// Random cases of every stage, after the fixed ones
    #[arg(long, value_name = "N", default_value_t = 8, default_value_if("quick", "true", "0"))]
    pub cases: u32,
    /// Where the random cases start from
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Seconds of random cases, at most a year, instead of a number of them
    #[arg(long, value_name = "SECONDS", conflicts_with = "cases", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub time: Option<u64>,
    /// Only stages whose name begins like this, as in nestedkv,attention/raw
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "case")]
    pub stages: Vec<String>,
    /// Print the names of the stages, of those of --stages if given, and run nothing
    #[arg(long, conflicts_with = "case", hide = true)]
    pub list: bool,
    /// Folder for report.json and the files of failing cases; made if there is none
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Run the case in this file again, and nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "seed", "time"])]
    pub case: Option<PathBuf>,
}

/// Runs the suite, or one case.
pub fn run(args: &ConformanceArgs, common: &Common) -> Result<(), Fail> {
    let again = args.case.as_deref().map(read).transpose()?;
    let config = Config {
        cases: if args.time.is_some() { u32::MAX } else { args.cases },
        seed: args.seed,
        stages: again.as_ref().map_or(args.stages.clone(), |case| vec![case.stage().into()]),
        fixed: if args.quick { Fixed::Few } else { Fixed::Everything },
    };
    let mut suite = Suite::new(&config).map_err(|error| match error {
        Error::Codec { argument: "stage", .. } => no_stage(&args.stages),
        other => other.into(),
    })?;
    if args.list {
        let stages = suite.stages();
        return stages.into_iter().try_for_each(print);
    }
    if let Some(folder) = &args.output {
        make_folder(folder)?;
        // Tried before any work is done.
        let cases = stages().map(case_name);
        for name in cases.chain([REPORT.into()]) {
            try_place(&folder.join(name), &[])?;
        }
    }
    let Engine::Gpu(gpu) = Engine::open(common)? else {
        return Err(Fail::device("conformance needs a GPU adapter; wgkv doctor says what to do"));
    };
    match again {
        Some(case) => suite.add(&case, try_case(&gpu, &case)),
        None => run_all(&mut suite, &gpu, args.time.map(Duration::from_secs)),
    }
    let report = suite.report(&gpu.context);
    if let Some(folder) = &args.output {
        save(folder, &report)?;
    }
    if common.json {
        print(&report.to_json())?;
    } else {
        show(&report)?;
    }
    if report.passed() {
        return Ok(());
    }
    if report.stages.iter().all(|stage| stage.cases == 0) {
        return Err(Fail { code: 1, message: "no case ran".into(), limit: false });
    }
    let failed: Vec<&str> =
        report.stages.iter().filter(|s| s.failure.is_some()).map(|s| s.stage).collect();
    Err(Fail { code: 1, message: format!("failed: {}", failed.join(", ")), limit: false })
}

/// The refusal of stages that there are not.
fn no_stage(wanted: &[String]) -> Fail {
    let mut methods: Vec<&str> = stages().filter_map(|name| name.split('/').next()).collect();
    methods.dedup();
    let (wanted, methods) = (shown(&wanted.join(",")), methods.join(", "));
    Fail::input(format!("--stages: no stage begins with {wanted}; there are those of {methods}"))
}

/// Runs cases until there are no more, or none but random ones and the time is over.
fn run_all(suite: &mut Suite, gpu: &Gpu, time: Option<Duration>) {
    let fixed = suite.remaining();
    let steps = if time.is_some() { 0 } else { fixed };
    let bar = progress(usize::try_from(steps).unwrap_or(usize::MAX).max(2), "checking");
    let mut until = None;
    while let Some(case) = suite.next_case() {
        if let Some(time) = time.filter(|_| suite.only_random_left()) {
            // A time that the clock does not reach has no end.
            let end = *until.get_or_insert_with(|| Instant::now().checked_add(time));
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        bar.set_message(case.stage());
        let outcome = try_case(gpu, &case);
        suite.add(&case, outcome);
        bar.inc(1);
        if time.is_some() {
            bar.set_length(bar.position() + 1);
        }
    }
    bar.finish_and_clear();
}

/// Runs one case; what the GPU refuses counts as its failure.
fn try_case(gpu: &Gpu, case: &Case) -> Outcome {
    let mut outcome = wait(&gpu.context, case.run(&gpu.context));
    if let Some(fault) = gpu.refused() {
        outcome.failure = Some(format!("the GPU refused the work: {fault}"));
    }
    outcome
}

/// A table of the stages, and what failed.
fn show(report: &Report) -> Result<(), Fail> {
    let head = ["stage", "cases", "compared", "worst error", "allowed", "result"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(report.stages.iter().map(|stage| {
        let (error, allowed) = match &stage.worst {
            Some(worst) => (format!("{:.1e}", worst.error), format!("{:.1e}", worst.tolerance)),
            None => ("exact".into(), "exact".into()),
        };
        let result = match (stage.cases, stage.failed) {
            (0, _) => "not run".into(),
            (_, 0) => "passed".into(),
            (_, failed) => format!("FAILED {failed}"),
        };
        let (cases, compared) = (stage.cases.to_string(), stage.compared.to_string());
        vec![stage.stage.into(), cases, compared, error, allowed, result]
    }));
    table(&rows).iter().try_for_each(|line| print(line))?;
    let ran: usize = report.kernels.iter().map(|kernel| kernel.ran).sum();
    let kernels = report.kernels.iter().filter(|kernel| kernel.ran > 0).count();
    print(&format!("\n{kernels} of {} kernels ran, in {ran} variants", report.kernels.len()))?;
    for stage in &report.stages {
        if let (Some(failure), Some(case)) = (&stage.failure, &stage.case) {
            print(&format!("\n{} FAILED: {failure}\n  case: {case}", stage.stage))?;
        }
    }
    Ok(())
}

/// Name of the report in its folder.
const REPORT: &str = "report.json";

/// Name of the file beside it that runs a stage's failing case again.
fn case_name(stage: &str) -> String {
    format!("{}.case.json", stage.replace('/', "-"))
}

/// Writes the report and the failing cases.
fn save(folder: &Path, report: &Report) -> Result<(), Fail> {
    let write =
        |name: &str, text: &str| write_whole(&folder.join(name), format!("{text}\n").as_bytes());
    write(REPORT, &report.to_json())?;
    for stage in &report.stages {
        let StageReport { stage, case: Some(case), .. } = stage else { continue };
        write(&case_name(stage), case)?;
    }
    say(&format!("report written to {}", shown(&folder.join(REPORT).display().to_string())));
    Ok(())
}

/// Reads the file of a case.
fn read(path: &Path) -> Result<Case, Fail> {
    let fail = |message: String| Fail::input(message).at(shown(&path.display().to_string()));
    let broken = |e| fail(said(&e));
    let no_case = |why: &str| fail(format!("is no case of wgkv conformance -o: {why}"));
    let kind = std::fs::metadata(path).map_err(broken)?;
    if !kind.is_file() || kind.len() > 1 << 16 {
        return Err(no_case("expected a small JSON file"));
    }
    let text = std::fs::read(path).map_err(broken)?;
    let text = String::from_utf8(text).map_err(|_| no_case("it is not text"))?;
    Case::from_json(text.trim()).map_err(|e| no_case(&told(e)))
}
