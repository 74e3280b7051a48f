//! M8: files move, end and come while reactors use them, under many schedules (I4, I9, I11).
//!
//! The model has what the argument of `tools/docs/regions.md` needs and nothing else: grains that belong to one file at a
//! time, a map that answers late, and reactors that ask it through [`Places`] and [`Stalls`]. Each access checks that the
//! grain it touches is its file's; that the file is not under way is checked by who moves it.

use std::collections::VecDeque;

use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use super::*;
use crate::target::stalls::{Drained, Of, Stalls};

const SCHEDULES: usize = 3_000;
const FIRST: InodeNo = InodeNo(5);
const SECOND: InodeNo = InodeNo(6);
/// Accesses of each reactor to each file.
const ACCESSES: usize = 3;

/// A one-time answer.
#[derive(Clone, Default)]
struct Answer(Arc<(Mutex<bool>, Condvar)>);

impl Answer {
    fn wait(&self) {
        let mut told = self.0.0.lock().unwrap();
        while !*told {
            told = self.0.1.wait(told).unwrap();
        }
    }
}

impl Drained for Answer {
    fn tell(self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

enum Job {
    Drain(Of, Answer),
    Resume(Of),
    /// The map has looked at the grain of a file, for who asked through this backing.
    Came(Lba, BackingId, InodeNo),
    End,
}

#[derive(Default)]
struct Inbox {
    jobs: Mutex<VecDeque<Job>>,
    call: Condvar,
}

impl Inbox {
    fn send(&self, job: Job) {
        self.jobs.lock().unwrap().push_back(job);
        self.call.notify_all();
    }

    fn next(&self) -> Job {
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            if let Some(job) = jobs.pop_front() {
                return job;
            }
            jobs = self.call.wait(jobs).unwrap();
        }
    }

    fn is_empty(&self) -> bool {
        self.jobs.lock().unwrap().is_empty()
    }
}

/// A planted bug: somebody says that he is drained, and is not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    NotDrained,
}

struct World {
    places: Places,
    /// Whose each grain is.
    owners: Mutex<[Option<InodeNo>; 3]>,
    inboxes: [Inbox; 2],
    bug: Bug,
}

impl World {
    fn new(bug: Bug) -> (Arc<Self>, [(BackingId, InodeNo); 2]) {
        let places = Places::new();
        let backing = |ino, lba| (places.attach(ino, Lba(lba)).unwrap(), ino);
        let files = [backing(FIRST, 0), backing(SECOND, 1)];
        let world = Self {
            places,
            owners: Mutex::new([Some(FIRST), Some(SECOND), None]),
            inboxes: [Inbox::default(), Inbox::default()],
            bug,
        };
        (Arc::new(world), files)
    }

    fn quiesce(&self, of: &Of) {
        let ask = |inbox: &Inbox| {
            let answer = Answer::default();
            inbox.send(Job::Drain(of.clone(), answer.clone()));
            answer
        };
        let answers: Vec<_> = self.inboxes.iter().map(ask).collect();
        answers.iter().for_each(Answer::wait);
    }

    fn hold(&self, ino: InodeNo) {
        if let Some(backing) = self.places.hold(ino) {
            self.quiesce(&Of::from(&[backing][..]));
        }
    }

    fn settle(&self, ino: InodeNo, start: Lba) {
        if let Some(backing) = self.places.settle(ino, Some(start)) {
            self.resume(&Of::from(&[backing][..]));
        }
    }

    fn resume(&self, of: &Of) {
        let resume = |inbox: &Inbox| inbox.send(Job::Resume(of.clone()));
        self.inboxes.iter().for_each(resume);
    }

    /// Nobody has anything of any file while this takes its grain away and gives it back.
    fn still(&self, ino: InodeNo) {
        self.places.hold_all();
        self.quiesce(&Of::All);
        let of = |owner: &Option<InodeNo>| *owner == Some(ino);
        let lba = self.owners.lock().unwrap().iter().position(of);
        if let Some(lba) = lba {
            self.give(Lba(lba as u64), None);
            self.give(Lba(lba as u64), Some(ino));
        }
        self.places.let_all_go();
        self.resume(&Of::All);
    }

    fn give(&self, lba: Lba, owner: Option<InodeNo>) {
        self.owners.lock().unwrap()[lba.0 as usize] = owner;
        thread::yield_now();
    }

    fn relocate(&self, ino: InodeNo, from: Lba, to: Lba) {
        self.hold(ino);
        self.give(from, None);
        self.give(to, Some(ino));
        self.settle(ino, to);
    }

    /// The last region of a file ends, and the file with it; another one gets its grain, and is registered.
    fn replace(&self, ino: InodeNo, lba: Lba, by: InodeNo) -> BackingId {
        self.detach(ino);
        self.give(lba, None);
        self.give(lba, Some(by));
        self.places.attach(by, lba).unwrap()
    }

    /// The same of a file that nobody has open: it is held while its last region ends.
    fn vacate(&self, ino: InodeNo, lba: Lba, by: InodeNo) -> BackingId {
        self.hold(ino);
        self.detach(ino);
        assert_eq!(self.places.settle(ino, None), None);
        self.give(lba, None);
        self.give(lba, Some(by));
        self.places.attach(by, lba).unwrap()
    }

    fn detach(&self, ino: InodeNo) {
        let gone = self.places.detach(&[ino]);
        let of = Of::from(&gone[..]);
        self.quiesce(&of);
        self.places.free(&gone);
        self.resume(&of);
    }

    fn touch(&self, lba: Lba, ino: InodeNo) {
        let owner = self.owners.lock().unwrap()[lba.0 as usize];
        assert_eq!(owner, Some(ino), "{lba:?} is not the file's");
    }

    /// A reactor that accesses each of these, and then works until it is told to end and has nothing left to do.
    fn react(&self, n: usize, wanted: &[(BackingId, InodeNo)]) {
        let inbox = &self.inboxes[n];
        let mut stalls = Stalls::new();
        let mut ended = false;
        for &(backing, ino) in wanted {
            while !inbox.is_empty() {
                ended |= self.work(inbox, &mut stalls);
            }
            self.ask(inbox, &mut stalls, backing, ino);
        }
        while !ended || !stalls.is_idle() {
            ended |= self.work(inbox, &mut stalls);
        }
    }

    fn ask(&self, inbox: &Inbox, stalls: &mut Wanted, backing: BackingId, ino: InodeNo) {
        match self.places.find(backing) {
            Place::At(lba) => {
                // What is resident is used at once.
                self.touch(lba, ino);
                stalls.asked(backing);
                inbox.send(Job::Came(lba, backing, ino));
            }
            Place::Held => stalls.stall(backing, (backing, ino)),
            Place::Lost | Place::Gone => {}
        }
    }

    /// Does one job; true if it was the end.
    fn work(&self, inbox: &Inbox, stalls: &mut Wanted) -> bool {
        match inbox.next() {
            Job::Drain(_, answer) if self.bug == Bug::NotDrained => answer.tell(),
            Job::Drain(of, answer) => stalls.drain(of, answer),
            Job::Resume(of) => {
                for (backing, ino) in stalls.resume(&of) {
                    self.ask(inbox, stalls, backing, ino);
                }
            }
            Job::Came(lba, backing, ino) => {
                // A late look of the map has an effect on the grain, also when nobody uses its answer.
                self.touch(lba, ino);
                match self.places.find(backing) {
                    Place::Held => stalls.stall(backing, (backing, ino)),
                    Place::At(place) => assert_eq!(place, lba, "moved while it was asked for"),
                    Place::Lost | Place::Gone => {}
                }
                stalls.came(backing);
            }
            Job::End => return true,
        }
        false
    }

    /// Runs two reactors beside `changes`.
    fn run(world: &Arc<Self>, files: [(BackingId, InodeNo); 2], changes: Vec<Change>) {
        let reactors = [0, 1].map(|n| {
            let world = Arc::clone(world);
            let wanted: Vec<_> = files.into_iter().cycle().take(2 * ACCESSES).collect();
            thread::spawn(move || world.react(n, &wanted))
        });
        let changes = changes.into_iter().map(|change| {
            let world = Arc::clone(world);
            thread::spawn(move || change(&world))
        });
        for change in changes.collect::<Vec<_>>() {
            change.join().unwrap();
        }
        world.inboxes.iter().for_each(|inbox| inbox.send(Job::End));
        for reactor in reactors {
            reactor.join().unwrap();
        }
    }
}

type Wanted = Stalls<(BackingId, InodeNo), Answer>;
type Change = Box<dyn FnOnce(&World) + Send>;

fn moving(bug: Bug) {
    let (world, files) = World::new(bug);
    // Each takes the place that the other has left: the grain of one file becomes that of another.
    let change = |world: &World| {
        world.relocate(SECOND, Lba(1), Lba(2));
        world.relocate(FIRST, Lba(0), Lba(1));
    };
    World::run(&world, files, vec![Box::new(change)]);
    let places = files.map(|(backing, _)| world.places.find(backing));
    assert_eq!(places, [Place::At(Lba(1)), Place::At(Lba(2))]);
}

/// No access touches a grain that has become another file's, and every access is made in the end.
#[test]
fn files_move_under_reactors() {
    shuttle::check_random(|| moving(Bug::None), SCHEDULES);
    shuttle::check_pct(|| moving(Bug::None), SCHEDULES, 3);
}

/// The model notices when reactors do not wait for what they have asked for (M12).
#[test]
#[should_panic(expected = "is not the file's")]
fn a_reactor_that_is_not_drained_is_noticed() {
    shuttle::check_random(|| moving(Bug::NotDrained), SCHEDULES);
}

/// The slot and the grain of a file that ends become those of another one: who comes with the old backing gets neither.
#[test]
fn places_are_not_mixed_up_when_files_end() {
    for end in [World::replace, World::vacate] {
        let model = move || {
            let (world, files) = World::new(Bug::None);
            let third = InodeNo(7);
            let replaced = move |world: &World| {
                let backing = end(world, FIRST, Lba(0), third);
                assert_eq!(world.places.find(backing), Place::At(Lba(0)));
            };
            World::run(&world, files, vec![Box::new(replaced)]);
            assert_eq!(world.places.find(files[0].0), Place::Gone);
        };
        shuttle::check_random(model, SCHEDULES);
        shuttle::check_pct(model, SCHEDULES, 3);
    }
}

/// Who holds all files has each of them to himself, beside one who moves them, also one that he has moved meanwhile.
#[test]
fn all_files_are_held_at_once() {
    let model = || {
        let (world, files) = World::new(Bug::None);
        let moves = |world: &World| world.relocate(SECOND, Lba(1), Lba(2));
        // The one that does not move: whose grain it is nobody else changes.
        let still = |world: &World| world.still(FIRST);
        World::run(
            &world,
            files,
            vec![Box::new(moves), Box::new(still), Box::new(still)],
        );
        let places = files.map(|(backing, _)| world.places.find(backing));
        assert_eq!(places, [Place::At(Lba(0)), Place::At(Lba(2))]);
        // Nor has anybody a file that gets its first region meanwhile.
        let third = InodeNo(7);
        world.places.hold_all();
        let backing = world.places.attach(third, Lba(9)).unwrap();
        assert_eq!(world.places.find(backing), Place::Held);
        assert_eq!(world.places.hold(third), Some(backing));
        world.places.let_all_go();
        assert_eq!(world.places.find(backing), Place::Held);
        assert_eq!(world.places.settle(third, Some(Lba(8))), Some(backing));
        assert_eq!(world.places.find(backing), Place::At(Lba(8)));
    };
    shuttle::check_random(model, SCHEDULES);
    shuttle::check_pct(model, SCHEDULES, 3);
}

/// Two who hold a file at once both have it to themselves until they settle; a file is also held that has no regions yet.
#[test]
fn a_file_is_held_until_the_last_settles() {
    let model = || {
        let (world, files) = World::new(Bug::None);
        let clone = |world: &World| {
            world.hold(FIRST);
            // Nobody touches it: the grain is taken away and given back.
            world.give(Lba(0), None);
            world.give(Lba(0), Some(FIRST));
            world.settle(FIRST, Lba(0));
        };
        World::run(&world, files, vec![Box::new(clone), Box::new(clone)]);
        assert_eq!(world.places.find(files[0].0), Place::At(Lba(0)));
        let third = InodeNo(7);
        assert_eq!(world.places.hold(third), None);
        let backing = world.places.attach(third, Lba(9)).unwrap();
        assert_eq!(world.places.find(backing), Place::Held);
        assert_eq!(world.places.settle(third, None), Some(backing));
        assert_eq!(world.places.find(backing), Place::Lost);
    };
    shuttle::check_random(model, SCHEDULES);
}
