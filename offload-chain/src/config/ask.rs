//! Asking a store and waiting for the answer, for those who have nothing else to do.

use std::time::{Duration, Instant};

use super::{Event, Item, Reply, Request, Store};

/// How long a store may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    /// The store says so.
    #[error(transparent)]
    Store(#[from] super::StoreError),
    /// It says nothing.
    #[error("the store did not answer within {PATIENCE:?}: is it there?")]
    Silent,
    /// It says something else.
    #[error("the store answered with {0:?}, which is no answer to that")]
    Odd(Reply),
}

/// Asks, and waits. What the store says besides is left out: it must be asked by nobody else meanwhile.
///
/// # Errors
/// If there is no answer, or it is an error.
pub fn ask(store: &mut dyn Store, request: Request) -> Result<Reply, AskError> {
    let own = store.submit(request);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.poll() {
            Some(Event::Answer(ticket, answer)) if ticket == own => return Ok(answer?),
            Some(_) => {}
            None if Instant::now() >= deadline => return Err(AskError::Silent),
            None => std::thread::sleep(LOOK),
        }
    }
}

/// All keys with this prefix.
///
/// # Errors
/// As [`ask`].
pub fn list(store: &mut dyn Store, prefix: &str) -> Result<Vec<Item>, AskError> {
    let prefix = prefix.to_owned();
    match ask(store, Request::List { prefix })? {
        Reply::Items(items, _) => Ok(items),
        other => Err(AskError::Odd(other)),
    }
}
