//! Clients that take turns, as a seed says: what each is answered is compared with the oracle at once.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::answer::{Answer, Attributes, Outcome, difference};
use super::draw;
use super::local::{Local, LocalCall, LocalView};
use super::oracle::{Body, Node, Oracle};
use super::remote::{Remote, RemoteCall, RemoteView};

/// Calls that are told when something is wrong: the last, and of those before the ones about the same files.
const TOLD: usize = 40;
const KEPT: usize = 5_000;
/// Nodes of the oracle that may be nobody's before they are cleared away.
const NODES_MAX: usize = 300;

/// A thread of its own that makes the calls of one client.
#[derive(Debug)]
struct Worker<C> {
    calls: Sender<C>,
    outcomes: Receiver<Outcome>,
}

impl<C: Send + 'static> Worker<C> {
    fn start<P: 'static>(
        make: impl FnOnce() -> P + Send + 'static,
        call: fn(&mut P, C) -> Outcome,
    ) -> Self {
        let (calls, received) = channel();
        let (answered, outcomes) = channel();
        thread::spawn(move || {
            let mut client = make();
            for next in received {
                if answered.send(call(&mut client, next)).is_err() {
                    return;
                }
            }
        });
        Self { calls, outcomes }
    }

    fn call(&self, call: C) -> Outcome {
        self.calls.send(call).expect("the client lives");
        self.outcomes.recv().expect("the client lives")
    }
}

/// Clients, all that they share, and what it should be.
#[derive(Debug)]
pub struct World {
    /// Where it is on the mount, and for peers.
    root: PathBuf,
    remote_root: String,
    seed: u64,
    rng: SmallRng,
    oracle: Oracle,
    locals: Vec<(LocalView, Option<Worker<LocalCall>>)>,
    remotes: Vec<(RemoteView, Option<Worker<RemoteCall>>)>,
    /// Calls, and the files they were about.
    history: VecDeque<(String, Vec<usize>)>,
    /// Calls made, and those of them that came back with an error, as they should.
    pub done: usize,
    pub refused: usize,
    /// Regions that were used after they had ended.
    pub ended: usize,
}

impl World {
    /// An empty one below a directory of the mount; `""` is the mount itself.
    pub fn new(mount: &Path, below: &str, clients: (usize, usize), seed: u64) -> Self {
        Self {
            root: mount.join(below),
            remote_root: match below {
                "" => String::new(),
                below => format!("/{below}"),
            },
            seed,
            rng: SmallRng::seed_from_u64(seed),
            oracle: Oracle::default(),
            locals: (0..clients.0).map(|_| Default::default()).collect(),
            remotes: (0..clients.1).map(|_| Default::default()).collect(),
            history: VecDeque::new(),
            done: 0,
            refused: 0,
            ended: 0,
        }
    }

    /// New programs and peers, of a target that was just started. Those of before are gone.
    pub fn start(&mut self, address: SocketAddr) {
        for (view, worker) in &mut self.locals {
            let root = self.root.clone();
            *view = LocalView::default();
            *worker = Some(Worker::start(move || Local::new(root), Local::call));
        }
        for (view, worker) in &mut self.remotes {
            let root = self.remote_root.clone();
            *view = RemoteView::default();
            let make = move || Remote::new(address, root);
            *worker = Some(Worker::start(make, Remote::call));
        }
    }

    /// The clients close everything and end.
    pub fn let_go(&mut self) {
        for n in 0..self.locals.len() {
            self.local(n, LocalCall::LetGo);
        }
        for n in 0..self.remotes.len() {
            self.remote(n, RemoteCall::Reconnect);
        }
    }

    /// The programs let go of what their target can not answer for any more.
    pub fn bury(&mut self) {
        for (view, worker) in &mut self.locals {
            *view = LocalView::default();
            let worker = worker.take().expect("started");
            // Closing may fail, and that does not matter.
            let _ = worker.call(LocalCall::LetGo);
        }
        for (view, worker) in &mut self.remotes {
            *view = RemoteView::default();
            *worker = None;
        }
    }

    /// So many calls, of whoever is drawn.
    pub fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let who = self
                .rng
                .random_range(0..self.locals.len() + self.remotes.len());
            if let Some(remote) = who.checked_sub(self.locals.len()) {
                let view = &self.remotes[remote].0;
                let call = draw::remote(&mut self.rng, &self.oracle, view);
                self.remote(remote, call);
            } else {
                let call = draw::local(&mut self.rng, &self.oracle, &self.locals[who].0);
                self.local(who, call);
            }
            if self.oracle.nodes.len() > NODES_MAX {
                self.compact();
            }
        }
    }

    fn compact(&mut self) {
        let locals = self.locals.iter_mut().map(|(view, _)| view);
        let mut files: Vec<&mut Node> = locals
            .flat_map(|view| view.slots.iter_mut().flatten().map(|file| &mut file.node))
            .collect();
        let remotes = self.remotes.iter_mut().map(|(view, _)| view);
        files.extend(
            remotes.flat_map(|view| view.slots.iter_mut().flatten().map(|file| &mut file.node)),
        );
        let used: Vec<Node> = files.iter().map(|node| **node).collect();
        let moved = self.oracle.compact(&used);
        files.into_iter().for_each(|node| *node = moved[node]);
    }

    fn local(&mut self, n: usize, call: LocalCall) {
        let (view, worker) = &mut self.locals[n];
        let (slots, path) = call.about();
        let open = slots.iter().filter_map(|&slot| view.slots[slot]);
        let open = open.map(|file| file.node).collect();
        let mut expected = view.expect(&mut self.oracle, &call);
        let worker = worker.as_ref().expect("started");
        Self::note(&mut self.history, &self.oracle, self.done, (open, path), {
            format!("program {n}: {call:?}")
        });
        let found = worker.call(call.clone());
        self.learn(n, &call, &mut expected, &found);
        self.compare(expected, found);
    }

    fn remote(&mut self, n: usize, call: RemoteCall) {
        let (view, worker) = &mut self.remotes[n];
        let (slots, path) = call.about();
        let open = slots.iter().filter_map(|&slot| view.slots[slot]);
        let open = open.map(|region| region.node).collect();
        let expected = view.expect(&mut self.oracle, &call);
        let worker = worker.as_ref().expect("started");
        Self::note(&mut self.history, &self.oracle, self.done, (open, path), {
            format!("peer {n}: {call:?}")
        });
        let found = worker.call(call);
        self.compare(expected, found);
    }

    fn note(
        history: &mut VecDeque<(String, Vec<usize>)>,
        oracle: &Oracle,
        done: usize,
        (mut nodes, path): (Vec<Node>, Option<&str>),
        call: String,
    ) {
        nodes.extend(path.and_then(|path| oracle.find(path).ok()));
        let files: Vec<_> = nodes.iter().map(|&node| oracle.nodes[node].id).collect();
        if history.len() == KEPT {
            history.pop_front();
        }
        history.push_back((format!("{done} {files:?} {call}"), files));
    }

    fn compare(&mut self, expected: Outcome, found: Outcome) {
        self.done += 1;
        self.refused += usize::from(found.is_err());
        self.ended += usize::from(found == Ok(Answer::Ended));
        let shrunk = std::mem::take(&mut self.oracle.shrunk);
        for (view, _) in &mut self.remotes {
            view.shrunk(&shrunk);
        }
        if expected != found {
            self.fail(&difference(&expected, &found));
        }
    }

    /// The number of an inode that was not known before is taken for true; from now on it must stay what it is.
    fn learn(&mut self, n: usize, call: &LocalCall, expected: &mut Outcome, found: &Outcome) {
        let told: Vec<(Node, &mut Attributes, Attributes)> = match (call, expected, found) {
            (_, Ok(Answer::Attributes(expected)), Ok(Answer::Attributes(found))) => {
                let node = match call {
                    LocalCall::Examine(slot) => self.locals[n].0.slots[*slot].expect("open").node,
                    LocalCall::Stat(path) => self.oracle.find(path).expect("it is there"),
                    _ => return,
                };
                vec![(node, expected, *found)]
            }
            (LocalCall::List(path), Ok(Answer::Names(expected)), Ok(Answer::Names(found))) => {
                let dir = self.oracle.find(path).expect("it is there");
                let nodes = self.oracle.dir(dir).expect("a directory").values();
                let told = nodes.zip(expected).zip(found);
                told.map(|((&node, (_, expected)), (_, found))| (node, expected, *found))
                    .collect()
            }
            _ => return,
        };
        for (node, expected, found) in told {
            let number = self.oracle.nodes[node].number.or(found.number);
            self.oracle.nodes[node].number = number;
            expected.number = number;
        }
    }

    fn fail(&self, what: &str) -> ! {
        let last = self.history.back();
        let files = last.map(|(_, files)| files.clone()).unwrap_or_default();
        let told = self.history.len().saturating_sub(TOLD);
        for (n, (call, about)) in self.history.iter().enumerate() {
            if n >= told || about.iter().any(|file| files.contains(file)) {
                eprintln!("  {call}");
            }
        }
        panic!(
            "seed {}, call {} in {:?}: {what}",
            self.seed, self.done, self.root
        );
    }

    /// Every file is synced by one of the programs. From now on a crash may come, if `crash`.
    pub fn barrier(&mut self, crash: bool) {
        for (path, node) in self.oracle.paths() {
            if !self.oracle.is_dir(node) {
                let n = self.rng.random_range(0..self.locals.len());
                self.local(n, LocalCall::SyncPath(path));
            }
        }
        self.oracle.barrier(crash);
    }

    /// Looks at everything, through the mount and as a peer. Of a crash may be seen what it may leave; that counts from
    /// now on.
    pub fn judge(&mut self) {
        self.settle("");
        for (path, node) in self.oracle.paths() {
            if self.oracle.is_dir(node) {
                self.settle(&path);
                continue;
            }
            let found = std::fs::read(self.root.join(&path))
                .unwrap_or_else(|error| self.fail(&format!("{path}: {error}")));
            let content = self.oracle.content_mut(node);
            if let Err(what) = content.judge(&found) {
                self.fail(&format!("{path}: {what}"));
            }
            content.bytes = found;
        }
        self.oracle.barrier(false);
        let all = self.oracle.paths().into_iter();
        let dirs = all.filter(|(_, node)| self.oracle.is_dir(*node));
        let dirs: Vec<_> = dirs.map(|(path, _)| path).chain(["".into()]).collect();
        for path in dirs {
            self.local(0, LocalCall::List(path.clone()));
            self.remote(0, RemoteCall::List(path));
        }
    }

    /// Compares the names in a directory, whatever the sizes.
    fn settle(&self, path: &str) {
        let node = self.oracle.find(path).expect("ours");
        let Body::Dir(entries) = &self.oracle.nodes[node].body else {
            return;
        };
        let expected: Vec<_> = entries.keys().cloned().collect();
        let found = std::fs::read_dir(self.root.join(path))
            .unwrap_or_else(|error| self.fail(&format!("{path}: {error}")));
        let mut found: Vec<_> = found
            .map(|entry| entry.unwrap().file_name().into_string().expect("ours"))
            .collect();
        found.sort();
        if expected != found {
            self.fail(&format!("{path} has {found:?}, not {expected:?}"));
        }
    }
}
