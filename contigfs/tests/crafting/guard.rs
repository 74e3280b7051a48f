//! What a case may cost: memory and time. Whoever takes more ends the test, with the seed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// Bytes that a case may hold at once; images take a few MiB.
const BYTES_MAX: usize = 192 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

static HELD: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);
/// Counts the cases that were begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a limit.
pub struct Limited;

impl Limited {
    fn take(bytes: usize) -> bool {
        let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > BYTES_MAX {
            say("takes too much memory");
        }
        held <= BYTES_MAX
    }
}

// SAFETY: the system's allocator does all; what it is asked for is what was asked for here.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && !Self::take(size - layout.size()) {
            return std::ptr::null_mut();
        }
        if size < layout.size() {
            HELD.fetch_sub(layout.size() - size, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Bytes held now.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Says something without taking memory.
fn say(what: &str) {
    let mut digits = [b'0'; 20];
    let mut seed = SEED.load(Ordering::Relaxed);
    for digit in digits.iter_mut().rev() {
        *digit += (seed % 10) as u8;
        seed /= 10;
    }
    let digits = str::from_utf8(&digits).unwrap_or("?");
    for part in ["seed ", digits, " ", what, "\n"] {
        // SAFETY: the bytes outlive the call.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
}

/// A case begins.
pub fn begin(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    BEGUN.fetch_add(1, Ordering::Relaxed);
}

/// There are no cases for a while.
pub fn rest() {
    BEGUN.store(0, Ordering::Relaxed);
}

/// One test at a time: what it takes is counted, and its seed is told.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static WATCH: Once = Once::new();
    WATCH.call_once(watch);
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when a case takes too long.
fn watch() {
    std::thread::spawn(|| {
        let mut last = 0;
        loop {
            std::thread::sleep(PATIENCE);
            let begun = BEGUN.load(Ordering::Relaxed);
            if begun == last && begun > 0 {
                say("takes too long");
                std::process::abort();
            }
            last = begun;
        }
    });
}
