//! Addresses of names, kept until something fails: a heartbeat must not wait for a look-up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ureq::Error;
use ureq::config::Config;
use ureq::http::uri::{Authority, Uri};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// What is known; as many names as there are endpoints.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<Authority, ResolvedSocketAddrs>>>);

impl Names {
    pub(super) fn forget(&self) {
        self.known().clear();
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Authority, ResolvedSocketAddrs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error other than a time-out is [`Error::Other`], which nothing else says: nobody was asked anything.
impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let place = uri.authority().ok_or(Error::HostNotFound)?;
        if let Ok(address) = place.as_str().parse() {
            let mut addresses = self.empty();
            addresses.push(address);
            return Ok(addresses);
        }
        if let Some(addresses) = self.known().get(place) {
            return Ok(addresses.clone());
        }
        let found = DefaultResolver::default().resolve(uri, config, timeout);
        let addresses = found.map_err(|error| match error {
            Error::Timeout(_) => error,
            error => Error::Other(Box::new(error)),
        })?;
        self.known().insert(place.clone(), addresses.clone());
        Ok(addresses)
    }
}
