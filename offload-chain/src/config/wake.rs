//! Being told that a store may have something to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Called, by whichever thread, when [`Store::poll`](super::Store::poll) may have something to say. It must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// That somebody was told to look, and has not looked since: so that who does not look is told once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knock(Arc<AtomicBool>);

impl Knock {
    /// Tells, unless that was done before and nobody has [looked](Self::looks) since.
    pub(crate) fn wake(&self, tell: impl Fn() + Send + Sync + 'static) -> Wake {
        let told = Arc::clone(&self.0);
        Arc::new(move || {
            if !told.swap(true, Ordering::AcqRel) {
                tell();
            }
        })
    }

    /// To be called before looking: what comes from here on is told again.
    pub(crate) fn looks(&self) {
        self.0.store(false, Ordering::Release);
    }
}
