//! What a target has done between two looks at it.

use std::time::Instant;

use crate::target::status::{Operations, Status};

/// The looks that there were at a target.
#[derive(Debug)]
pub(super) struct Looks {
    now: Status,
    /// The one before, if it was at the same process.
    before: Option<Status>,
    /// What everything begins with.
    nothing: Status,
    seen: Instant,
    /// Seconds between the two, as measured here.
    apart: f64,
    /// The process that served the volume before this one.
    predecessor: Option<u32>,
}

impl Looks {
    /// Begins with this.
    pub(super) fn first(now: Status) -> Self {
        Self {
            now,
            before: None,
            nothing: Status::default(),
            seen: Instant::now(),
            apart: 0.0,
            predecessor: None,
        }
    }

    /// Another look. Nothing is compared with that at another process.
    pub(super) fn again(&mut self, now: Status) {
        let seen = Instant::now();
        self.apart = (seen - self.seen).as_secs_f64();
        self.seen = seen;
        let before = std::mem::replace(&mut self.now, now);
        let (old, new) = (&before.process, &self.now.process);
        let is_same = old.pid == new.pid && old.uptime <= new.uptime;
        if !is_same {
            self.predecessor = Some(old.pid);
        }
        self.before = is_same.then_some(before);
    }

    /// How it is.
    pub(super) fn now(&self) -> &Status {
        &self.now
    }

    /// The process that served the volume when this began, or since then, before the one that does now.
    pub(super) fn predecessor(&self) -> Option<u32> {
        self.predecessor
    }

    /// What has happened since the last look; if there was none, since the target was started.
    pub(super) fn latest(&self) -> Span<'_> {
        let Some(before) = &self.before else {
            return self.all();
        };
        // The target has looked at its clock when it counted.
        let told = self.now.process.uptime - before.process.uptime;
        let seconds = if told > 0.0 { told } else { self.apart };
        Span {
            now: &self.now,
            before,
            seconds,
            is_all: false,
        }
    }

    /// What has happened since the target was started.
    pub(super) fn all(&self) -> Span<'_> {
        Span {
            now: &self.now,
            before: &self.nothing,
            seconds: self.now.process.uptime,
            is_all: true,
        }
    }
}

/// What has happened in a span of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    /// At its end.
    pub(super) now: &'a Status,
    before: &'a Status,
    /// How long it is.
    pub(super) seconds: f64,
    /// It began when the target was started: then counts are shown instead of rates.
    pub(super) is_all: bool,
}

impl<'a> Span<'a> {
    /// What has come to a count.
    pub(super) fn counted(&self, count: impl Fn(&Status) -> u64) -> u64 {
        count(self.now).saturating_sub(count(self.before))
    }

    /// A number of anything, as it is shown: per second, or as it is if the span is all there was.
    pub(super) fn rate(&self, count: u64) -> f64 {
        if self.is_all {
            count as f64
        } else {
            // No clock is as fine.
            count as f64 / self.seconds.max(1e-3)
        }
    }

    /// What has come to a counter of the translation layer.
    pub(super) fn log(&self, name: &str) -> u64 {
        self.counted(|status| log(status, name))
    }

    /// Operations of a kind.
    pub(super) fn operations(
        &self,
        find: impl Fn(&'a Status) -> Option<&'a Operations>,
    ) -> Operations {
        let now = find(self.now).cloned().unwrap_or_default();
        match find(self.before) {
            Some(before) => now.since(before),
            None => now,
        }
    }

    /// Share of a processor that the target has taken.
    pub(super) fn processor(&self) -> f64 {
        let took = self.now.process.cpu - self.before.process.cpu;
        took.max(0.0) / self.seconds.max(1e-3)
    }

    /// Grains written for each of a user; none if no user has written.
    pub(super) fn write_amplification(&self) -> Option<f64> {
        let user = self.log("user_grains");
        let more = ["relocated_grains", "header_grains", "checkpoint_grains"];
        let more: f64 = more.iter().map(|name| self.log(name) as f64).sum();
        (user > 0).then(|| 1.0 + more / user as f64)
    }
}

/// A counter of the translation layer, or how something is there now.
pub(super) fn log(status: &Status, name: &str) -> u64 {
    status.volume.log.get(name).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pid: u32, uptime: f64, user_grains: u64) -> Status {
        let mut status = Status::default();
        status.process.pid = pid;
        status.process.uptime = uptime;
        status.process.cpu = uptime / 4.0;
        let log = &mut status.volume.log;
        log.insert("user_grains".to_owned(), user_grains);
        log.insert("header_grains".to_owned(), user_grains / 10);
        status
    }

    /// Rates are those between two looks, by the clock of the target; totals are all there was.
    #[test]
    fn rates_and_totals() {
        let mut looks = Looks::first(status(7, 100.0, 1000));
        assert!(looks.latest().is_all);
        looks.again(status(7, 102.0, 1500));
        let latest = looks.latest();
        let user = latest.log("user_grains");
        assert_eq!((user, latest.rate(user)), (500, 250.0));
        assert_eq!((latest.seconds, latest.processor()), (2.0, 0.25));
        assert_eq!(latest.write_amplification(), Some(1.1));
        let all = looks.all();
        let user = all.log("user_grains");
        assert_eq!((user, all.rate(user)), (1500, 1500.0));
        looks.again(status(7, 103.0, 1500));
        assert_eq!(looks.latest().write_amplification(), None);
    }

    /// Another process has begun to count anew: it is compared with nothing.
    #[test]
    fn another_process() {
        for other in [status(8, 200.0, 50), status(7, 0.5, 50)] {
            let mut looks = Looks::first(status(7, 100.0, 1000));
            looks.again(other);
            assert!(looks.latest().is_all);
            assert_eq!(looks.latest().log("user_grains"), 50);
            assert_eq!(looks.predecessor(), Some(7));
        }
    }

    /// A target that tells nothing of its clock, or that counts backwards.
    #[test]
    fn nothing_is_divided_by_nothing() {
        let mut looks = Looks::first(status(7, 0.0, 1000));
        looks.again(status(7, 0.0, 900));
        let latest = looks.latest();
        assert_eq!(latest.log("user_grains"), 0);
        assert!(latest.rate(10).is_finite() && latest.processor().is_finite());
    }
}
