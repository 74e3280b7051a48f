//! The door: who is let in, and as whom. Nothing of a connection but its start frame is looked at before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use softrdma::ProtectionDomain;

use super::denial::Denial;
use super::greeting::{Greeting, SessionBlock};
use super::planted::Bug;
use super::token::{Claims, Key, ONCE_SECONDS_MAX, TenantName};

/// The domain of peers without a token, where they are let in.
pub const ANONYMOUS: ProtectionDomain = ProtectionDomain(1);
/// Tokens of one tenant that are remembered.
const ONCE_MAX: usize = 16_384;

/// A tenant as the door knows it.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// What its tokens are made with.
    pub key: Key,
    /// Tokens of no other epoch are taken.
    pub epoch: u64,
    /// Whose regions its connections may touch.
    pub domain: ProtectionDomain,
    /// Latest time seen, Unix seconds: the clock is not believed when it says less.
    pub seen: AtomicU64,
    /// Nonces of tokens that are taken once, until they expire.
    used: Mutex<HashMap<[u8; 16], u64>>,
}

impl Tenant {
    /// A tenant of whom nobody has been here yet; `seen` is the latest time that is known.
    pub fn new(
        name: TenantName,
        key: Key,
        epoch: u64,
        domain: ProtectionDomain,
        seen: u64,
    ) -> Self {
        Self {
            name,
            key,
            epoch,
            domain,
            seen: AtomicU64::new(seen),
            used: Mutex::default(),
        }
    }

    fn check(&self, claims: &Claims, now: u64, bug: Option<Bug>) -> Result<(), Denial> {
        if claims.epoch != self.epoch && bug != Some(Bug::TokenEpochUnchecked) {
            return Err(Denial::Epoch);
        }
        let now = self.seen.fetch_max(now, Ordering::Relaxed).max(now);
        if claims.expires <= now && bug != Some(Bug::TokenNeverExpires) {
            return Err(Denial::Expired);
        }
        if !claims.once || bug == Some(Bug::TokenUsedTwice) {
            return Ok(());
        }
        if claims.expires - now > ONCE_SECONDS_MAX {
            return Err(Denial::TooLong);
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() >= ONCE_MAX {
            used.retain(|_, &mut expires| expires > now);
        }
        if used.contains_key(&claims.nonce) {
            return Err(Denial::Used);
        }
        if used.len() >= ONCE_MAX {
            return Err(Denial::Busy);
        }
        used.insert(claims.nonce, claims.expires);
        Ok(())
    }
}

/// Who has been let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whose regions the connection may touch.
    pub domain: ProtectionDomain,
    /// The session it belongs to.
    pub session: Option<SessionBlock>,
}

/// The door of a target.
#[derive(Debug)]
pub struct Door {
    tenants: Vec<Tenant>,
    strangers: bool,
    /// For unknown tenants, who shall cost as much as known ones.
    nobody: Key,
    bug: Option<Bug>,
}

impl Door {
    /// Lets these tenants in, and with `strangers` also who says nothing of himself.
    pub fn new(tenants: Vec<Tenant>, strangers: bool) -> Self {
        let nobody = Key::derive(&rand::random::<[u8; 32]>()).expect("a secret of 32 bytes");
        Self {
            tenants,
            strangers,
            nobody,
            bug: None,
        }
    }

    /// The same, wrong on purpose.
    #[must_use]
    pub fn with_bug(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }

    /// The tenants.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Whether those are let in who say nothing of themselves.
    pub fn lets_strangers_in(&self) -> bool {
        self.strangers
    }

    /// How many are let in by a name of their own, with strangers, who are one; one at least.
    pub fn members(&self) -> usize {
        (self.tenants.len() + usize::from(self.strangers)).max(1)
    }

    /// Decides over a peer by the private data of its request; `now` is Unix time in seconds.
    pub fn admit(&self, private_data: &[u8], now: u64) -> Result<Admission, Denial> {
        let greeting = Greeting::parse(private_data).map_err(|_| Denial::Malformed)?;
        let session = greeting.session;
        let Some(token) = greeting.token else {
            return match self.strangers {
                true => Ok(Admission {
                    domain: ANONYMOUS,
                    session,
                }),
                false => Err(Denial::NoToken),
            };
        };
        let tenant = self.tenants.iter().find(|t| t.name == *token.tenant());
        let key = tenant.map_or(&self.nobody, |tenant| &tenant.key);
        let claims = match self.bug {
            Some(Bug::TokenMacUnchecked) => Some(token.claims().clone()),
            _ => token.verify(key),
        };
        let (Some(tenant), Some(claims)) = (tenant, claims) else {
            return Err(Denial::Refused);
        };
        tenant.check(&claims, now, self.bug)?;
        Ok(Admission {
            domain: tenant.domain,
            session,
        })
    }
}
