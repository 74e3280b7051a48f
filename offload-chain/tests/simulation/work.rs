//! What a client of the group does.

use std::time::Duration;

use offload_chain::group::{Flight, Outcome, PrimitiveError};

use super::app::App;
use super::grants::Grant;
use super::group::Group;
use super::records::Recorder;

/// Something to do.
#[derive(Debug)]
pub enum Work {
    /// Objects are read and written, under locks and through the log.
    Objects(Box<App>),
    /// Records are put in the log, read and truncated.
    Records(Box<Recorder>),
}

/// The same for either.
macro_rules! either {
    ($work:expr, $own:ident => $what:expr) => {
        match $work {
            Work::Objects($own) => $what,
            Work::Records($own) => $what,
        }
    };
}

impl Work {
    /// The objects' client; in runs that have them.
    pub fn objects(&mut self) -> &mut App {
        match self {
            Self::Objects(app) => app,
            Self::Records(_) => panic!("this run has no objects"),
        }
    }

    pub fn connect(&mut self, group: &mut Group) {
        let epoch = group.epoch();
        either!(self, own => own.connect(epoch, group));
    }

    pub fn disconnect(&mut self) {
        either!(self, own => own.disconnect());
    }

    pub fn fenced(&mut self) {
        either!(self, own => own.fenced());
    }

    pub fn handle(
        &mut self,
        now: Duration,
        group: &mut Group,
        flight: Flight,
        result: &Result<Outcome, PrimitiveError>,
    ) {
        either!(self, own => own.handle(now, group, flight, result));
    }

    pub fn wake(&mut self, now: Duration, group: &mut Group) {
        either!(self, own => own.wake(now, group));
    }

    /// When it wants to be woken.
    pub fn wakes(&self) -> Option<Duration> {
        either!(self, own => own.wake)
    }

    /// The write locks it had.
    pub fn grants(&self) -> &[Grant] {
        either!(self, own => &own.grants)
    }

    pub fn completed(&self) -> u64 {
        either!(self, own => own.completed)
    }

    /// It is to begin nothing any more.
    pub fn stop(&mut self) {
        either!(self, own => own.stop = true);
    }

    pub fn is_done(&self) -> bool {
        either!(self, own => own.is_done())
    }

    /// What cannot be, but is.
    pub fn wrong(&self) -> Option<&String> {
        either!(self, own => own.wrong.as_ref())
    }

    pub fn describe(&self) -> String {
        either!(self, own => own.describe())
    }
}
