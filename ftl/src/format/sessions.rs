//! The sessions that wrote the log, in the superblock: which of their headers count.

use super::HeaderNo;

/// Most past sessions whose ends are remembered one by one.
pub const SESSIONS_MAX: usize = 150;

/// What of a past session counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// The session.
    pub session: u64,
    /// Number its first header had, if it wrote any.
    pub first: HeaderNo,
    /// Number of its last header that counts; those above were cut.
    pub end: HeaderNo,
}

/// Which headers of past sessions count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// Sessions up to this one are only remembered together.
    pub base_session: u64,
    /// Last header that counts of the sessions up to `base_session`.
    pub base_end: HeaderNo,
    /// The later ones, ascending.
    pub ends: Vec<SessionEnd>,
}

impl Sessions {
    /// Whether header `no` of the past session `session` counts.
    pub fn admits(&self, session: u64, no: HeaderNo) -> bool {
        if session <= self.base_session {
            return no <= self.base_end;
        }
        self.ends
            .iter()
            .any(|s| s.session == session && s.first <= no && no <= s.end)
    }

    /// Last header that counts.
    pub fn last(&self) -> HeaderNo {
        self.ends.last().map_or(self.base_end, |s| s.end)
    }

    /// Records the end of a session. Sessions of which `seen` knows no header any more are dropped; beyond the
    /// bound, the oldest are merged (their cut tails have been erased by then).
    pub fn push(&mut self, end: SessionEnd, seen: impl Fn(u64) -> bool) {
        self.ends.push(end);
        // The youngest stay in any case: a header that could not be read this time may be back the next.
        let keep_from = self.ends.len().saturating_sub(16);
        let mut index = 0;
        self.ends.retain(|s| {
            index += 1;
            index > keep_from || seen(s.session)
        });
        while self.ends.len() > SESSIONS_MAX {
            let oldest = self.ends.remove(0);
            self.base_session = oldest.session;
            self.base_end = oldest.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cut headers of a past session never count, nor do sessions nobody has heard of (I2, I6).
    #[test]
    fn sessions_admit_their_own() {
        let mut sessions = Sessions {
            base_session: 0,
            base_end: HeaderNo(0),
            ends: vec![SessionEnd {
                session: 2,
                first: HeaderNo(1),
                end: HeaderNo(0x55),
            }],
        };
        assert!(sessions.admits(2, HeaderNo(0x55)));
        assert!(!sessions.admits(2, HeaderNo(0x56)));
        assert!(!sessions.admits(1, HeaderNo(1)));
        assert!(!sessions.admits(3, HeaderNo(0x40)));
        for session in 3..400 {
            let end = SessionEnd {
                session,
                first: HeaderNo(session * 10),
                end: HeaderNo(session * 10 + 5),
            };
            sessions.push(end, |_| true);
        }
        assert_eq!(sessions.ends.len(), SESSIONS_MAX);
        assert!(sessions.admits(399, HeaderNo(3995)));
        assert!(!sessions.admits(399, HeaderNo(3996)));
        assert!(sessions.admits(2, HeaderNo(0x55)));
    }
}
