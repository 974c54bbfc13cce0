//! The order of the cases and their account.

use std::collections::VecDeque;

use super::case::Case;
use super::checks::{Outcome, Worst};
use super::draw::Random;
use super::report::{KernelReport, Report, StageReport};
use super::run::Origin;
use super::stages::STAGES;
use crate::error::{Error, Result};
use crate::gpu::Context;
use crate::kernels::kernels;

/// Names of all stages.
pub fn stages() -> impl Iterator<Item = &'static str> {
    STAGES.iter().map(|stage| stage.name)
}

/// What a [`Suite`] runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Random cases of every stage. Default 8.
    pub cases: u32,
    /// What the random cases start from; below 2^53. Default 1.
    pub seed: u64,
    /// Only stages whose name begins with one of these; none: all. Default none.
    pub stages: Vec<String>,
    /// What runs before the random cases. Default everything.
    pub fixed: Fixed,
}

/// Cases that run whatever the seed, before the random ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fixed {
    /// None.
    Nothing,
    /// Of each stage one reference case and one of those that go through the variants, or one case that
    /// does not depend on [`Config::seed`] where it has neither: a first look, where a driver takes
    /// seconds to build a shader.
    Few,
    /// All reference cases and all that go through the variants.
    #[default]
    Everything,
}

impl Default for Config {
    fn default() -> Self {
        Self { cases: 8, seed: 1, stages: Vec::new(), fixed: Fixed::default() }
    }
}

/// The account of one stage.
#[derive(Debug, Default)]
struct Account {
    cases: u64,
    failed: u64,
    compared: u64,
    worst: Option<Worst>,
    first: Option<(Case, String)>,
}

/// Hands out cases and keeps the account of what came of them.
#[derive(Debug)]
pub struct Suite {
    config: Config,
    /// Numbers of the stages that take part.
    chosen: Vec<usize>,
    fixed: VecDeque<Case>,
    /// Smaller cases to try after a failure.
    search: VecDeque<Case>,
    /// Random cases handed out so far.
    drawn: u64,
    accounts: Vec<Account>,
}

/// Seeds are whole numbers that JSON keeps everywhere.
const SEEDS: u64 = (1 << 53) - 1;

impl Suite {
    /// A suite that has run nothing yet.
    ///
    /// # Errors
    /// [`Error::Codec`] when no stage has a name that begins as asked; [`Error::OutOfRange`] for a
    /// seed of 2^53 or more.
    pub fn new(config: &Config) -> Result<Self> {
        if config.seed > SEEDS {
            let (argument, got) = ("seed", config.seed);
            return Err(Error::OutOfRange { argument, got, min: 0, max: SEEDS });
        }
        let wanted = |name: &str| {
            config.stages.is_empty() || config.stages.iter().any(|part| name.starts_with(part))
        };
        let chosen: Vec<usize> =
            (0..STAGES.len()).filter(|number| wanted(STAGES[*number].name)).collect();
        if chosen.is_empty() {
            return Err(Error::Codec {
                argument: "stage",
                expected: "the beginning of a stage's name",
            });
        }
        let mut fixed = VecDeque::new();
        for number in &chosen {
            let stage = &STAGES[*number];
            let all = |count: usize, few: usize| match config.fixed {
                Fixed::Nothing => 0..0,
                Fixed::Few => few.min(count)..count.min(few + 1),
                Fixed::Everything => 0..count,
            };
            let references = all(stage.references, 0).map(Origin::Reference);
            // The second has rows of 2 bits, where there are any.
            let second = stage.covers.saturating_sub(1).min(1);
            let covers = all(stage.covers, second).map(Origin::Cover);
            let plain = config.fixed == Fixed::Few && stage.references + stage.covers == 0;
            let plain = plain.then_some(Origin::Property);
            for origin in references.chain(covers).chain(plain) {
                let seed = if let Origin::Cover(place) = origin { place as u64 } else { 0 };
                fixed.push_back(Case { stage, origin, seed, size: 100, search: false });
            }
        }
        let accounts = STAGES.iter().map(|_| Account::default()).collect();
        let (config, search) = (config.clone(), VecDeque::new());
        Ok(Self { config, chosen, fixed, search, drawn: 0, accounts })
    }

    /// Names of the stages that take part, in their order.
    pub fn stages(&self) -> Vec<&'static str> {
        self.chosen.iter().map(|number| STAGES[*number].name).collect()
    }

    /// Cases that are still to come, smaller ones after a failure left out.
    pub fn remaining(&self) -> u64 {
        let all = u64::from(self.config.cases).saturating_mul(self.chosen.len() as u64);
        self.fixed.len() as u64 + all.saturating_sub(self.drawn)
    }

    /// Whether all reference cases and those of the variants were handed out. The random ones that
    /// follow go round all stages, so that a caller may stop whenever its time is over.
    pub fn only_random_left(&self) -> bool {
        self.fixed.is_empty() && self.search.is_empty()
    }

    /// The next case; none when all were handed out.
    pub fn next_case(&mut self) -> Option<Case> {
        if let Some(case) = self.search.pop_front().or_else(|| self.fixed.pop_front()) {
            return Some(case);
        }
        let stages = self.chosen.len() as u64;
        if self.drawn >= u64::from(self.config.cases).saturating_mul(stages) {
            return None;
        }
        let (round, turn) = (self.drawn / stages, (self.drawn % stages) as usize);
        let number = self.chosen[turn];
        self.drawn += 1;
        let mut random = Random(self.config.seed ^ (round << 16 | number as u64) << 8);
        let seed = random.bits() & SEEDS;
        let (stage, origin) = (&STAGES[number], Origin::Property);
        Some(Case { stage, origin, seed, size: 100, search: false })
    }

    /// Takes down what came of a case. After the first failure of a stage the next cases look for a
    /// smaller one of the same kind.
    pub fn add(&mut self, case: &Case, outcome: Outcome) {
        let Some(number) = STAGES.iter().position(|stage| stage.name == case.stage.name) else {
            return;
        };
        let account = &mut self.accounts[number];
        if !case.search {
            account.cases += 1;
            account.failed += u64::from(outcome.failure.is_some());
            account.compared += outcome.compared;
            let ratio = |worst: &Option<Worst>| worst.as_ref().map_or(-1.0, Worst::ratio);
            if ratio(&outcome.worst) > ratio(&account.worst) {
                account.worst = outcome.worst;
            }
        }
        let Some(failure) = outcome.failure else { return };
        if account.first.is_none() || case.search {
            account.first = Some((*case, failure));
            self.search.extend(case.smaller());
        }
    }

    /// The account so far.
    pub fn report(&self, context: &Context) -> Report {
        let stages = self.chosen.iter().map(|number| {
            let account = &self.accounts[*number];
            StageReport {
                stage: STAGES[*number].name,
                cases: account.cases,
                failed: account.failed,
                compared: account.compared,
                worst: account.worst.clone(),
                failure: account.first.as_ref().map(|(_, failure)| failure.clone()),
                case: account.first.as_ref().map(|(case, _)| case.to_json()),
            }
        });
        let built = context.built();
        let kernels = kernels().into_iter().map(|(kernel, variants)| KernelReport {
            kernel: kernel.name,
            variants: variants.len(),
            ran: built.iter().filter(|(name, _)| *name == kernel.name).count(),
        });
        Report::new(&self.config, context, stages.collect(), kernels.collect())
    }
}
