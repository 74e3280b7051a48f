//! The search: every state that a recipe can be in, the power cut in each, and the restart behind each cut.
//!
//! Breadth first, so that the way shown to lose data is a shortest one. States are remembered; what a cut leaves is a
//! set of pieces, and what restarts can make of that set is found out once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use super::model::{Machine, Move, Pieces, State};
use super::recipe::Item;

/// More states than this are a mistake in the model: the largest of the catalogue has a hundredth of it.
const STATES_MAX: usize = 1 << 20;

/// What is wrong with a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Harm {
    /// The requester had been told, and it is not there.
    Lost,
    /// The second change is there without the first.
    Reordered,
    /// Nothing happens any more, and the requester has not been told.
    Stuck,
}

/// A way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// What is wrong.
    pub harm: Harm,
    /// What happened, one after the other, up to the cut.
    pub steps: Vec<String>,
    /// What the cut left.
    pub left: String,
    /// What a reader finds after the restart.
    pub found: String,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Different states, with the power cut in each.
    pub cuts: usize,
    /// Steps between them.
    pub steps: usize,
    /// States after restarts, with the power cut again in each.
    pub restarts: usize,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No cut in no schedule does harm.
    Survives(Evidence),
    /// This one does.
    Fails(Counterexample),
}

impl Verdict {
    /// Does the recipe survive?
    #[must_use]
    pub const fn survives(&self) -> bool {
        matches!(self, Self::Survives(_))
    }
}

/// Runs a machine through all its states.
pub(super) fn search(machine: &Machine) -> Verdict {
    let mut restarts = Restarts::new(machine);
    let mut graph = Graph::new(machine.initial(Pieces::default()));
    let mut moves = Vec::new();
    let mut steps = 0;
    while let Some((at, state)) = graph.next() {
        let left = machine.survivors(state);
        if let Some((harm, found)) = restarts.harm(left, machine.is_told(state)) {
            return Verdict::Fails(Counterexample {
                harm,
                steps: graph.trace(machine, at),
                left: machine.names(left),
                found: machine.names(found),
            });
        }
        machine.moves(state, &mut moves);
        steps += moves.len();
        if moves.is_empty() && !machine.is_told(state) {
            return Verdict::Fails(Counterexample {
                harm: Harm::Stuck,
                steps: graph.trace(machine, at),
                left: machine.names(left),
                found: machine.names(left),
            });
        }
        for &what in &moves {
            graph.reach(machine.apply(state, what), at, what);
        }
    }
    Verdict::Survives(Evidence {
        cuts: graph.seen.len(),
        steps,
        restarts: restarts.states,
    })
}

/// States seen, each with the way to it.
struct Graph {
    seen: HashMap<State, usize>,
    ways: Vec<Option<(usize, Move)>>,
    states: Vec<State>,
    next: usize,
}

impl Graph {
    fn new(first: State) -> Self {
        Self {
            seen: HashMap::from([(first, 0)]),
            ways: vec![None],
            states: vec![first],
            next: 0,
        }
    }

    fn next(&mut self) -> Option<(usize, State)> {
        let state = *self.states.get(self.next)?;
        self.next += 1;
        Some((self.next - 1, state))
    }

    fn reach(&mut self, state: State, from: usize, by: Move) {
        let number = self.states.len();
        if let std::collections::hash_map::Entry::Vacant(entry) = self.seen.entry(state) {
            assert!(number < STATES_MAX, "the model has become too large");
            entry.insert(number);
            self.states.push(state);
            self.ways.push(Some((from, by)));
        }
    }

    fn trace(&self, machine: &Machine, mut at: usize) -> Vec<String> {
        let mut steps = Vec::new();
        while let Some((from, by)) = self.ways[at] {
            steps.push(machine.describe(self.states[from], by));
            at = from;
        }
        steps.reverse();
        steps
    }
}

/// What readers can find after a cut, once the responder has restarted, however often its power is cut meanwhile.
struct Restarts<'a> {
    machine: &'a Machine,
    restarted: Machine,
    outcomes: HashMap<Pieces, Vec<Pieces>>,
    states: usize,
}

impl<'a> Restarts<'a> {
    fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            restarted: machine.restarted(),
            outcomes: HashMap::new(),
            states: 0,
        }
    }

    /// What a reader may find that must not be, after a cut that left this.
    fn harm(&mut self, left: Pieces, told: bool) -> Option<(Harm, Pieces)> {
        let (a, b) = (self.machine.change(Item::A), self.machine.change(Item::B));
        if !self.outcomes.contains_key(&left) {
            let outcomes = self.explore(left);
            self.outcomes.insert(left, outcomes);
        }
        self.outcomes[&left].iter().find_map(|&found| {
            if found.meets(b) && !found.includes(a) {
                return Some((Harm::Reordered, found));
            }
            let whole = found.includes(a) && found.includes(b);
            (told && !whole).then_some((Harm::Lost, found))
        })
    }

    /// Everything that readers can find, from cut to cut.
    fn explore(&mut self, left: Pieces) -> Vec<Pieces> {
        let mut found = HashSet::new();
        let mut cuts = HashSet::from([left]);
        let mut queue = VecDeque::from([left]);
        let changes = Pieces(self.machine.change(Item::A).0 | self.machine.change(Item::B).0);
        let mut moves = Vec::new();
        while let Some(left) = queue.pop_front() {
            if !self.machine.replays(left) {
                found.insert(left.and(changes));
                continue;
            }
            let first = self.restarted.initial(left);
            let mut seen = HashSet::from([first]);
            let mut open = vec![first];
            while let Some(state) = open.pop() {
                let again = self.restarted.survivors(state);
                if cuts.insert(again) {
                    queue.push_back(again);
                }
                if self.restarted.is_served(state) {
                    found.insert(self.restarted.visible(state).and(changes));
                }
                self.restarted.moves(state, &mut moves);
                for &what in &moves {
                    let next = self.restarted.apply(state, what);
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
            }
            self.states += seen.len();
        }
        let mut found: Vec<Pieces> = found.into_iter().collect();
        found.sort_by_key(|pieces| pieces.0);
        found
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "said to be durable, and lost",
            Self::Reordered => "b is there without a",
            Self::Stuck => "never ends",
        })
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>4}. {step}", number + 1)?;
        }
        if self.harm == Harm::Stuck {
            return write!(f, "      nothing more: {}", self.harm);
        }
        write!(
            f,
            "      POWER CUT leaves {}; a reader finds {}: {}",
            self.left, self.found, self.harm
        )
    }
}
