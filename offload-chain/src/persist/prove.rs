//! The proof of a cell: the planned recipe survives every cut, and nothing cheaper does.
//!
//! A [`Proof`] can only be made here, by running the search; a tick in a table is one.

use std::collections::HashMap;
use std::fmt;

use super::catalogue;
use super::model::{Machine, Planted};
use super::peer::Peer;
use super::plan::{Refusal, able, admit};
use super::recipe::{Cost, Recipe};
use super::scenario::{Config, Scenario, Update};
use super::search::{Counterexample, Evidence, Verdict, search};

/// A proven cell. Only [`Prover::prove`] makes one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// The cell.
    pub scenario: Scenario,
    /// Who responds.
    pub peer: Peer,
    /// What to do.
    pub recipe: Recipe,
    /// What was looked at to say so.
    pub evidence: Evidence,
    /// Recipes for this kind of update that lose or reorder data, each with the rule that refuses it and the way it
    /// happens.
    pub weaker: Vec<(Recipe, Refusal, Counterexample)>,
    /// Recipes for this kind of update that are right too, the cheapest first. Those with the same operation all cost
    /// more than the planned one.
    pub others: Vec<(Recipe, Cost)>,
}

/// Why a cell gets no tick.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unproven {
    /// There is no recipe.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The rules are too kind.
    #[error("{recipe} was thought to be right:\n{counterexample}")]
    Wrong {
        /// The recipe.
        recipe: String,
        /// What happens.
        counterexample: Counterexample,
    },
    /// The rules, or the model, are too strict: no cut harms what was refused.
    #[error("{recipe} was refused ({refusal}), but no cut harms it")]
    Survives {
        /// The recipe.
        recipe: String,
        /// Why it was refused.
        refusal: Refusal,
    },
    /// Not the cheapest.
    #[error("{cheaper} is right too, and cheaper than {recipe}")]
    NotCheapest {
        /// The planned recipe.
        recipe: String,
        /// The better one.
        cheaper: String,
    },
}

/// Proves cells, and remembers what was searched.
#[derive(Debug, Default)]
pub struct Prover {
    verdicts: HashMap<Machine, Verdict>,
    planted: Option<Planted>,
}

impl Prover {
    /// One that has searched nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose responder has a bug.
    #[cfg(test)]
    pub(super) fn with(planted: Planted) -> Self {
        Self {
            planted: Some(planted),
            ..Self::default()
        }
    }

    /// Proves the cell for a peer: that the planned recipe survives, that each other recipe of the catalogue that the
    /// peer can carry out survives exactly if the rules admit it, and that none with the same operation is as cheap.
    ///
    /// # Errors
    /// What stands against it.
    pub fn prove(&mut self, scenario: Scenario, peer: Peer) -> Result<Proof, Unproven> {
        let Scenario { update, config, .. } = scenario;
        let recipe = scenario.plan(peer)?;
        let evidence = match self.examine(&recipe, config, update, peer) {
            Verdict::Survives(evidence) => *evidence,
            Verdict::Fails(counterexample) => return Err(wrong(&recipe, counterexample)),
        };
        let (mut weaker, mut others) = (Vec::new(), Vec::new());
        let all = catalogue::recipes().flat_map(|recipe| peer.forms(&recipe));
        for other in all.filter(|other| *other != recipe && able(other, update, peer).is_ok()) {
            let verdict = self.examine(&other, config, update, peer);
            match (admit(&other, config, update, peer), verdict) {
                (Ok(()), Verdict::Fails(counterexample)) => {
                    return Err(wrong(&other, counterexample));
                }
                (Err(refusal), Verdict::Survives(_)) => {
                    let recipe = other.name();
                    return Err(Unproven::Survives { recipe, refusal });
                }
                (Err(refusal), Verdict::Fails(counterexample)) => {
                    weaker.push((other, refusal, counterexample.clone()));
                }
                (Ok(()), Verdict::Survives(_)) => {
                    let same = other.primary() == recipe.primary();
                    if same && other.cost() <= recipe.cost() {
                        return Err(Unproven::NotCheapest {
                            recipe: recipe.name(),
                            cheaper: other.name(),
                        });
                    }
                    let cost = other.cost();
                    others.push((other, cost));
                }
            }
        }
        others.sort_by_key(|(_, cost)| *cost);
        Ok(Proof {
            scenario,
            peer,
            recipe,
            evidence,
            weaker,
            others,
        })
    }

    /// Searches all that can become of a recipe, whether it is right or not, and whether it is of the catalogue or made
    /// from one that is.
    ///
    /// # Panics
    /// If the recipe has more than eight operations, or moves more than eight pieces of data.
    pub fn examine(
        &mut self,
        recipe: &Recipe,
        config: Config,
        update: Update,
        peer: Peer,
    ) -> &Verdict {
        let machine = Machine::new(recipe, config, update, peer, self.planted);
        self.verdicts.entry(machine).or_insert_with_key(search)
    }

    /// What was looked at in all.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.verdicts
            .values()
            .fold(Evidence::default(), |sum, verdict| match verdict {
                Verdict::Survives(one) => Evidence {
                    cuts: sum.cuts + one.cuts,
                    steps: sum.steps + one.steps,
                    restarts: sum.restarts + one.restarts,
                },
                Verdict::Fails(_) => sum,
            })
    }
}

fn wrong(recipe: &Recipe, counterexample: &Counterexample) -> Unproven {
    Unproven::Wrong {
        recipe: recipe.to_string(),
        counterexample: counterexample.clone(),
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence {
            cuts,
            steps,
            restarts,
        } = self.evidence;
        writeln!(f, "{}, {}", self.scenario, self.peer)?;
        writeln!(f, "  {}", self.recipe)?;
        writeln!(
            f,
            "  survives {cuts} cuts between {steps} steps, {restarts} more in restarts"
        )?;
        for (recipe, refusal, counterexample) in &self.weaker {
            writeln!(f, "  {recipe}\n    refused: {refusal}\n{counterexample}")?;
        }
        for (recipe, _) in &self.others {
            writeln!(f, "  right too: {}", recipe.name())?;
        }
        Ok(())
    }
}
