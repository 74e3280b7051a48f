//! One store for several who ask: each gets the answers to its own questions.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::{Event, Request, Store, Ticket, list};
use crate::membership::{CONFIG, Configuration, decode};

/// Between looks at what a store has to say.
pub(crate) const STORE_POLL: Duration = Duration::from_millis(5);

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
    pub(super) fn new(store: Box<dyn Store + Send>) -> Self {
        let owners = HashMap::new();
        Self { store, owners }
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
