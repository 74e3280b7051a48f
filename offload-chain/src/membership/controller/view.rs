//! What a controller sees in the store.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::{Item, Revision};
use crate::epoch::Epoch;
use crate::lock::{SLOTS_MAX, Slot};
use crate::membership::configuration::{
    BadValue, Boot, CLIENT, CONFIG, Configuration, DOUBT, Doubt, MEMBER, MemberId, Report, SLOT,
    Seat, decode,
};

/// What a controller sees in the store at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The configuration.
    pub configuration: Option<Configuration>,
    pub(super) revision: Revision,
    /// Living members.
    pub reports: BTreeMap<MemberId, Report>,
    /// Slots that are taken.
    pub slots: BTreeMap<Slot, (Boot, Revision)>,
    /// Slots whose client lives.
    pub clients: BTreeMap<Slot, Boot>,
    /// Epochs in doubt.
    pub doubts: BTreeMap<Epoch, Doubt>,
    /// What could not be read.
    pub bad: Vec<String>,
}

/// The store is as it was long ago: a member has been in an epoch that is later than the one it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// Of the configuration in the store.
    pub epoch: Epoch,
    /// Who has been in a later one.
    pub member: MemberId,
    /// The latest that it has been in.
    pub been: Epoch,
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            epoch,
            member,
            been,
        } = self;
        write!(
            f,
            "the store was put back to an older state: it has the group in epoch {epoch}, and member {member} has been in {been}. \
             Who has what was acknowledged since it does not know, so nothing changes until it is corrected (\"A store that was put back\" in chain.md)"
        )
    }
}

impl View {
    /// What these items say.
    #[must_use]
    pub fn of(items: &[Item]) -> Self {
        let mut view = Self::default();
        for item in items {
            if let Err(bad) = view.take(item) {
                view.bad.push(bad);
            }
        }
        view
    }

    fn take(&mut self, item: &Item) -> Result<(), String> {
        let said = |error: BadValue| error.to_string();
        let number = |prefix: &str| {
            let number = item.key.strip_prefix(prefix)?;
            number.parse::<u64>().ok()
        };
        let slot = |prefix| number(prefix).and_then(|slot| Slot::new(u32::try_from(slot).ok()?));
        if item.key == CONFIG {
            self.configuration = Some(decode(item).map_err(said)?);
            self.revision = item.revision;
        } else if item.key.starts_with(MEMBER) {
            let report: Report = decode(item).map_err(said)?;
            self.reports.insert(report.seat.id, report);
        } else if let Some(slot) = slot(CLIENT) {
            self.clients.insert(slot, decode(item).map_err(said)?);
        } else if let Some(slot) = slot(SLOT) {
            let boot = decode(item).map_err(said)?;
            self.slots.insert(slot, (boot, item.revision));
        } else if let Some(epoch) = number(DOUBT) {
            self.doubts
                .insert(Epoch(epoch), decode(item).map_err(said)?);
        }
        Ok(())
    }

    /// Whether the store was put back to an older state. A member says nothing of an epoch before it is in the store, and epochs only grow.
    #[must_use]
    pub fn put_back(&self) -> Option<PutBack> {
        let epoch = self.configuration.as_ref()?.epoch;
        let been = |report: &Report| {
            let term = report.log.map_or(Epoch(0), |(term, _)| term);
            (report.sealed.max(term), report.seat.id)
        };
        let (been, member) = self.reports.values().map(been).max()?;
        (been > epoch).then_some(PutBack {
            epoch,
            member,
            been,
        })
    }

    pub(super) fn lives(&self, seat: &Seat) -> bool {
        let report = self.reports.get(&seat.id);
        report.is_some_and(|report| report.seat == *seat)
    }

    /// How long operations wait at members of the chain, in milliseconds.
    pub(super) fn lags(&self, config: &Configuration) -> Vec<(MemberId, u64)> {
        let lag = |seat: &Seat| Some((seat.id, self.reports.get(&seat.id)?.lag_ms));
        config.chain.iter().filter_map(lag).collect()
    }

    /// Whether all have leases who are, or were last, in the group.
    pub(super) fn is_complete(&self, config: &Configuration) -> bool {
        let seats = config.chain.iter().chain(&config.active_chain);
        let mut members = seats.filter(|seat| config.members.contains(&seat.id));
        members.all(|seat| self.reports.contains_key(&seat.id)) && self.dead_slots().is_empty()
    }

    /// Slots whose client is gone.
    pub(super) fn dead_slots(&self) -> Vec<(Slot, Boot)> {
        let slots = self.slots.iter();
        slots
            .filter(|(slot, (boot, _))| self.clients.get(slot) != Some(boot))
            .map(|(slot, (boot, _))| (*slot, *boot))
            .collect()
    }

    /// Keys of slots that are there still of clients that this epoch fences.
    pub(super) fn fenced_keys(&self, config: &Configuration) -> Vec<(Slot, Revision)> {
        let key = |(slot, boot): &(Slot, Boot)| {
            let (found, revision) = self.slots.get(slot)?;
            (found == boot).then_some((*slot, *revision))
        };
        config.fenced.iter().filter_map(key).collect()
    }

    /// Slots that have no key, and are not among these.
    pub(super) fn vacant(&self, fenced: &[(Slot, Boot)]) -> Vec<(Slot, Boot)> {
        let known = |slot: &Slot| fenced.iter().any(|(other, _)| other == slot);
        let slots = (0..SLOTS_MAX).filter_map(Slot::new);
        let vacant = slots.filter(|slot| !self.slots.contains_key(slot) && !known(slot));
        vacant.map(|slot| (slot, Boot::NOBODY)).collect()
    }
}
