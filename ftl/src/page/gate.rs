//! Who changes a page and who copies it for the media keep out of each other's way.
//!
//! A page may be changed at any moment, also while it is being copied into a write-out. The copy would then be some of what was
//! before and some of what came after, with a checksum that fits; the change is written out later, but if the power fails
//! before that, the mix is all that is left of the page (I2), be it one that had long been durable. So each frame has a
//! gate: those who change it pass side by side, and a copy waits until they are through and holds up those who come.
//!
//! ```text
//!   bit 63: being copied        low bits: so many are changing it
//!
//!   change   not copied:  n ──► n + 1 ── bytes ──► n            being copied: waits
//!   copy     n ──► copied, n ── until n is 0 ── bytes ──► 0
//! ```
//!
//! Either lasts as long as it takes to copy a grain, so waiting is looking again. Nobody waits for anything else
//! inside, so nothing can lock up. Reading a page takes no gate.

use crate::map::Word;
use std::sync::atomic::AtomicU64;

const COPYING: u64 = 1 << 63;
/// Looks before the processor is left to somebody else, who may be the one waited for.
const LOOKS: u32 = 100;

/// Of one frame.
#[derive(Debug)]
pub(crate) struct Gate<W = AtomicU64>(W);

impl<W: Word> Gate<W> {
    pub(crate) fn new() -> Self {
        Self(W::new(0))
    }

    /// Runs `work`, which changes bytes of the page, while the page is not copied.
    pub(crate) fn change<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut pause = Pause::default();
        loop {
            let now = self.0.load();
            if now & COPYING != 0 {
                pause.wait();
            } else if self.0.swap_if(now, now + 1).is_ok() {
                break;
            }
        }
        let done = work();
        self.update(|now| now - 1);
        done
    }

    /// Runs `work`, which copies the page, while nobody changes it. One at a time: the holder of the core's lock.
    pub(crate) fn copy<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.update(|now| now | COPYING);
        assert_eq!(before & COPYING, 0, "one copies at a time");
        let mut pause = Pause::default();
        while self.0.load() != COPYING {
            pause.wait();
        }
        let done = work();
        self.update(|now| now & !COPYING);
        done
    }

    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let mut now = self.0.load();
        while let Err(other) = self.0.swap_if(now, change(now)) {
            now = other;
        }
        now
    }
}

#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn wait(&mut self) {
        self.0 += 1;
        if cfg!(not(test)) && self.0 < LOOKS {
            std::hint::spin_loop();
        } else {
            yield_now();
        }
    }
}

#[cfg(test)]
use shuttle::thread::yield_now;
#[cfg(not(test))]
use std::thread::yield_now;

#[cfg(test)]
mod tests {
    use super::*;
    use shuttle::sync::Arc;
    use shuttle::sync::atomic::{AtomicU64, Ordering};
    use shuttle::thread;

    /// The checker's atomic as the word of a gate.
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

    /// A page of two words. Each change adds one to either.
    struct Page {
        gate: Gate<Checked>,
        words: [AtomicU64; 2],
    }

    /// I2, M8: copies hold whole changes and nothing of others, and each change is made.
    #[test]
    fn copies_are_whole() {
        let scenario = || {
            let page = Arc::new(Page {
                gate: Gate::new(),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
            });
            let run = |work: fn(&Page)| {
                let page = Arc::clone(&page);
                thread::spawn(move || work(&page))
            };
            let change = |page: &Page| {
                page.gate.change(|| {
                    for word in &page.words {
                        word.fetch_add(1, Ordering::SeqCst);
                    }
                });
            };
            let copy = |page: &Page| {
                for _ in 0..2 {
                    let seen = page.gate.copy(|| {
                        page.words
                            .each_ref()
                            .map(|word| word.load(Ordering::SeqCst))
                    });
                    assert_eq!(seen[0], seen[1]);
                }
            };
            let threads = [run(change), run(change), run(copy)];
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(page.words[0].load(Ordering::SeqCst), 2);
            assert_eq!(page.gate.0.load(), 0);
        };
        shuttle::check_random(scenario, 20_000);
        shuttle::check_pct(scenario, 5_000, 3);
    }
}
