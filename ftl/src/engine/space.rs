//! How full the volume is, accounts, its size, and what is free.

use super::Ftl;
use crate::account::{AccountId, AccountUse};
use crate::addr::{GRAIN_BYTES, LbaRange};
#[cfg(doc)]
use crate::error::GetError;
use crate::error::ResizeError;
use crate::ids::{Port, Token};
#[cfg(doc)]
use crate::port::Event;
use crate::shared::Shared;
use crate::space::Space;

impl Ftl {
    /// Capacity and use; too much use at most, as long as not all of the map is in memory.
    pub fn space(&self) -> Space {
        self.core(Shared::BACKGROUND, |core, _| Space {
            capacity: core.geometry().capacity_grains,
            mapped: core.mapped(),
            available: core.available(),
        })
    }

    /// These ranges belong to an account, or to none, from now on, with everything that is and gets mapped in them. Such
    /// notes live as long as the volume is open. Takes time by the grains that are mapped in the ranges. See
    /// `docs/accounts.md`.
    pub fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.assign(cx, ranges, account);
        });
    }

    /// As [`assign`](Self::assign), if the account does not grow beyond its limit; whether it was done. All of the map
    /// must be in memory (see [`Ftl::load`]), else too little is counted.
    pub fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.assign_if_room(cx, ranges, account)
        })
    }

    /// Sets or removes the limit of an account, in grains. What is mapped stays, also beyond the limit; nothing more
    /// gets mapped then ([`GetError::Quota`], [`DurableError::Quota`](crate::DurableError::Quota)), and what adds nothing
    /// is never refused.
    pub fn limit_account(&self, account: AccountId, limit: Option<u64>) {
        self.core(Shared::BACKGROUND, |core, _| {
            core.limit_account(account, limit);
        });
    }

    /// How full an account is, of what is in memory of the map (see [`Ftl::load`]).
    pub fn account(&self, account: AccountId) -> AccountUse {
        self.core(Shared::BACKGROUND, |core, _| core.account_use(account))
    }

    /// Gives the volume the size of a device of so many grains, which the device must have already: more of it while
    /// everything goes on, or less, when what is on it fits. [`Event::Durable`] when that is so; an error there leaves the
    /// volume as it was, unless it has failed. See `docs/resize.md`.
    ///
    /// # Errors
    /// [`ResizeError`], and nothing has been changed.
    pub fn resize(&self, port: Port, device_grains: u64, token: Token) -> Result<(), ResizeError> {
        self.core(port, |core, cx| core.resize(cx, device_grains, token))
    }

    /// Begins to discard all free segments that have not been discarded since the volume was opened, whether or not
    /// [`OpenOptions::discard`](crate::OpenOptions::discard) says so, unless only a few are free at all. Returns how many bytes
    /// that are.
    pub fn discard_free(&self) -> u64 {
        let segment = u64::from(self.info.geometry.segment_grains) * GRAIN_BYTES as u64;
        self.aside(|core, _| core.discard_free()) as u64 * segment
    }

    /// Whether something of what [`discard_free`](Self::discard_free) has begun waits for its turn.
    pub fn is_discarding_free(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.discards_wanted() > 0)
    }

    /// Grains of the smallest device that the volume can be shrunk to as it is now. All of the map must be in memory (see
    /// [`Ftl::load`]), else it may be too large.
    ///
    /// # Errors
    /// [`ResizeError::Array`]
    pub fn device_grains_min(&self) -> Result<u64, ResizeError> {
        self.core(Shared::BACKGROUND, |core, _| core.device_grains_min())
    }
}
