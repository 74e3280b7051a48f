//! One store for several who ask: each gets the answers to its own questions.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::config::{Event, Knock, Request, Store, Ticket, list};
use crate::membership::{CONFIG, Configuration, decode};

use super::agent::Inbox;

/// Between looks at what a store has to say that does not tell when it has.
const STORE_POLL: Duration = Duration::from_millis(5);

/// How long to sleep before looking what the store has to say. `woken`: it tells; `urgent`: somebody waits for it.
pub(crate) fn store_sleep(woken: bool, urgent: bool) -> Duration {
    match (woken, urgent) {
        (true, _) => Duration::MAX,
        (false, false) => STORE_POLL,
        (false, true) => STORE_POLL / 4,
    }
}

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Member,
    Controller,
    Directory,
}

/// A store, and who waits for what.
pub(super) struct Mux {
    store: Box<dyn Store + Send>,
    owners: HashMap<Ticket, Owner>,
    knock: Knock,
    woken: bool,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux")
            .field("owners", &self.owners)
            .finish_non_exhaustive()
    }
}

/// The store, for one of them.
#[derive(Debug)]
pub(super) struct Via<'a> {
    mux: &'a mut Mux,
    owner: Owner,
}

impl Mux {
    /// `inbox` is told when there may be something to [`poll`](Self::poll).
    pub(super) fn new(mut store: Box<dyn Store + Send>, inbox: Sender<Inbox>) -> Self {
        let knock = Knock::default();
        // It fails when the agent has ended.
        let woken = store.wake_by(knock.wake(move || drop(inbox.send(Inbox::Store))));
        Self {
            store,
            owners: HashMap::new(),
            knock,
            woken,
        }
    }

    /// How long to sleep if nobody tells that there is something.
    pub(super) fn sleep(&self, urgent: bool) -> Duration {
        store_sleep(self.woken, urgent)
    }

    /// To be called before polling.
    pub(super) fn looks(&self) {
        self.knock.looks();
    }

    pub(super) fn via(&mut self, owner: Owner) -> Via<'_> {
        Via { mux: self, owner }
    }

    /// What there is, and for whom.
    pub(super) fn poll(&mut self) -> Option<(Owner, Event)> {
        loop {
            let event = self.store.poll()?;
            let owner = match &event {
                Event::Answer(ticket, _) => self.owners.remove(ticket),
                // The controller watches everything, the member what is configured.
                Event::Changed { prefix } if prefix.is_empty() => Some(Owner::Controller),
                Event::Changed { .. } => Some(Owner::Member),
            };
            if let Some(owner) = owner {
                return Some((owner, event));
            }
        }
    }
}

impl Store for Via<'_> {
    fn submit(&mut self, request: Request) -> Ticket {
        let ticket = self.mux.store.submit(request);
        self.mux.owners.insert(ticket, self.owner);
        ticket
    }

    fn poll(&mut self) -> Option<Event> {
        None
    }
}

/// What the group is.
pub(super) fn wait_for_config(store: &mut dyn Store) -> Result<Configuration, String> {
    let items = list(store, CONFIG).map_err(|error| error.to_string())?;
    let item = items.iter().find(|item| item.key == CONFIG);
    let item = item.ok_or("the store has no group: create one first")?;
    decode(item).map_err(|error| error.to_string())
}
