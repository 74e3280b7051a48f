//! M8: the lock-free transitions of a map entry under many schedules (I2, I4, page states).
//!
//! Users pin, read or write and unpin without a lock; one thread plays the core, the holder of the lock: it cleans,
//! evicts, fills again into another frame, and trims. Frames are modelled by words that say whose bytes they hold.

use ftl::Pba;
use ftl::map::{Entry, FrameId, Location, State, Unpinned, Word};
use ftl::placement::Heat;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// The checker's atomic as the word of an entry.
struct Checked(AtomicU64);

impl Word for Checked {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.0.compare_exchange(current, new, order, order)
    }
}

/// A frame that belongs to nobody.
const NOBODY: u64 = u64::MAX;

struct World {
    entry: Entry<Checked>,
    /// What each of the two frames holds: a count of the grain's writes, or `NOBODY`.
    frames: [AtomicU64; 2],
    /// What the media holds.
    media: AtomicU64,
    /// Pins that a trim found: the users of an orphaned frame.
    orphans: Mutex<[u32; 2]>,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Self {
            entry: Entry::default(),
            frames: [AtomicU64::new(0), AtomicU64::new(NOBODY)],
            media: AtomicU64::new(0),
            orphans: Mutex::new([0; 2]),
        };
        world.entry.replace(State::resident(FrameId(0), 0, false));
        Arc::new(world)
    }

    /// A user: pins if resident, looks, perhaps writes, unpins. Returns whether it wrote into the live page.
    fn visit(&self, write: bool) -> bool {
        let Some(frame) = self.entry.pin() else {
            return false;
        };
        let content = &self.frames[frame.0 as usize];
        assert_ne!(
            content.load(Ordering::SeqCst),
            NOBODY,
            "pinned a frame that is free"
        );
        if write {
            content.fetch_add(1, Ordering::SeqCst);
        }
        thread::yield_now();
        assert_ne!(
            content.load(Ordering::SeqCst),
            NOBODY,
            "frame freed while pinned"
        );
        match self.entry.unpin(frame, write) {
            Unpinned::Done { .. } => write,
            Unpinned::Detached => {
                let mut orphans = self.orphans.lock().expect("lock");
                let left = &mut orphans[frame.0 as usize];
                assert!(*left > 0, "orphan unpinned too often");
                *left -= 1;
                if *left == 0 {
                    content.store(NOBODY, Ordering::SeqCst);
                }
                false
            }
        }
    }

    /// The core: cleans and evicts if it can; if away, fills the other frame.
    fn maintain(&self) {
        let there = Location::Media(Pba(7));
        match self.entry.state() {
            State::Resident(r) => {
                let content = &self.frames[r.frame.0 as usize];
                if self.entry.clean(r.frame) {
                    self.media
                        .store(content.load(Ordering::SeqCst), Ordering::SeqCst);
                }
                if self.entry.evict(r.frame, there, Heat::UNKNOWN, true) {
                    let last = content.swap(NOBODY, Ordering::SeqCst);
                    assert_eq!(
                        last,
                        self.media.load(Ordering::SeqCst),
                        "evicted unsaved bytes"
                    );
                }
            }
            State::Away(_) => {
                let free = |f: &u32| self.frames[*f as usize].load(Ordering::SeqCst) == NOBODY;
                let Some(frame) = (0..2).find(free) else {
                    return;
                };
                self.entry.replace(State::InFlight(FrameId(frame)));
                thread::yield_now();
                let bytes = self.media.load(Ordering::SeqCst);
                self.frames[frame as usize].store(bytes, Ordering::SeqCst);
                self.entry
                    .replace(State::resident(FrameId(frame), 0, false));
            }
            State::InFlight(_) => unreachable!("only the core fills"),
        }
    }

    /// The core trims: pins move from the entry to the orphaned frame.
    fn trim(&self) {
        let mut orphans = self.orphans.lock().expect("lock");
        if let State::Resident(r) = self.entry.replace(State::UNMAPPED) {
            orphans[r.frame.0 as usize] = r.pins;
            if r.pins == 0 {
                self.frames[r.frame.0 as usize].store(NOBODY, Ordering::SeqCst);
            }
        }
    }
}

/// No pin on a free frame, no frame freed under a pin, no write lost by cleaning or eviction.
#[test]
fn eviction_against_users() {
    let scenario = || {
        let world = World::new();
        let users: Vec<_> = (0..2)
            .map(|user| {
                let world = Arc::clone(&world);
                thread::spawn(move || (0..3).filter(|i| world.visit((i + user) % 2 == 0)).count())
            })
            .collect();
        for _ in 0..4 {
            world.maintain();
        }
        let wrote: usize = users.into_iter().map(|u| u.join().expect("user")).sum();
        // Whatever is left goes to the media; then all writes must be there.
        while !matches!(world.entry.state(), State::Away(_)) {
            world.maintain();
        }
        assert_eq!(
            world.media.load(Ordering::SeqCst),
            wrote as u64,
            "writes on the media"
        );
    };
    shuttle::check_random(scenario, 20_000);
    shuttle::check_pct(scenario, 5_000, 3);
}

/// A trim under users frees the frame exactly when the last of them has gone.
#[test]
fn trim_against_users() {
    let scenario = || {
        let world = World::new();
        let users: Vec<_> = (0..3)
            .map(|user| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.visit(user == 0))
            })
            .collect();
        world.trim();
        for user in users {
            user.join().expect("user");
        }
        assert_eq!(world.entry.state(), State::UNMAPPED);
        assert_eq!(
            world.frames[0].load(Ordering::SeqCst),
            NOBODY,
            "frame leaked"
        );
    };
    shuttle::check_random(scenario, 20_000);
    shuttle::check_pct(scenario, 5_000, 3);
}
