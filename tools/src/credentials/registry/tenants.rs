//! What the volume remembers of tenants: their domains, epochs, and the latest time that they have seen.

use std::collections::HashMap;

use contigfs::{BlockStore, FsError};
use softrdma::ProtectionDomain;
use tracing::warn;

use super::super::door::ANONYMOUS;
use super::super::record::{self, Record, TENANTS_AT, TENANTS_MAX, TenantRecord};
use super::super::token::TenantName;
use super::{EnrolError, Registry, State, lock};

/// How often the latest time seen is written, in seconds.
const SEEN_EVERY: u64 = 3600;

impl<S: BlockStore> Registry<S> {
    /// Makes tenants known to the volume, with epochs that are not over. Returns them with their domains, in order.
    pub fn enrol(
        &self,
        wanted: &[(TenantName, u64)],
        now: u64,
    ) -> Result<Vec<TenantRecord>, EnrolError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let media = self.media()?;
        let mut state = lock(&self.state);
        may_enrol(&state, wanted)?;
        let mut all = state.tenants.clone();
        for (name, epoch) in wanted {
            let known = all.iter().position(|tenant| tenant.name == *name);
            let Some(known) = known else {
                if all.len() >= TENANTS_MAX {
                    // Who is not configured any more is forgotten; its registrations find no domain.
                    let gone = |t: &TenantRecord| wanted.iter().all(|(name, _)| t.name != *name);
                    let gone = all.iter().position(gone);
                    all.remove(gone.ok_or(EnrolError::TooMany(wanted.len()))?);
                }
                let domain = fresh_domain(&all, &state.found);
                all.push(TenantRecord {
                    name: name.clone(),
                    domain,
                    epoch: *epoch,
                    seen: now,
                });
                continue;
            };
            let tenant = &mut all[known];
            if *epoch > tenant.epoch {
                // All tokens of before are refused for their epoch: the clock may be believed again.
                (tenant.epoch, tenant.seen) = (*epoch, now);
            }
            tenant.seen = tenant.seen.max(now);
        }
        let write = |grain: &[u8]| {
            media.write_in_any_case(TENANTS_AT, grain)?;
            media.sync(&[TENANTS_AT])
        };
        write(&record::emit_tenants(&all)).map_err(FsError::from)?;
        let found = |(name, _): &(TenantName, u64)| all.iter().find(|t| t.name == *name).cloned();
        let enrolled = wanted.iter().filter_map(found).collect();
        (state.tenants, state.seen_at) = (all, now);
        Ok(enrolled)
    }

    /// Whether [`enrol`](Self::enrol) would take these as things are, for one who asks before it is his turn.
    pub fn would_enrol(&self, wanted: &[(TenantName, u64)]) -> Result<(), EnrolError> {
        may_enrol(&lock(&self.state), wanted)
    }

    pub(super) fn note_time(&self, state: &mut State, now: u64) {
        let Some(media) = self.media.get() else {
            return;
        };
        if state.tenants.is_empty() || now < state.seen_at.saturating_add(SEEN_EVERY) {
            return;
        }
        state.seen_at = now;
        for tenant in &mut state.tenants {
            tenant.seen = tenant.seen.max(now);
        }
        let grain = record::emit_tenants(&state.tenants);
        if let Err(error) = media.write_in_any_case(TENANTS_AT, &grain) {
            warn!(%error, "the time cannot be remembered");
        }
    }
}

/// A domain that no tenant has, and no registration that was read.
fn fresh_domain(tenants: &[TenantRecord], found: &[(usize, Record)]) -> ProtectionDomain {
    let known: HashMap<u32, ()> = tenants
        .iter()
        .map(|tenant| (tenant.domain.0, ()))
        .chain(found.iter().map(|(_, record)| (record.domain.0, ())))
        .collect();
    let fresh = (ANONYMOUS.0 + 1..).find(|domain| !known.contains_key(domain));
    ProtectionDomain(fresh.expect("there are more numbers than tenants and slots"))
}

fn may_enrol(state: &State, wanted: &[(TenantName, u64)]) -> Result<(), EnrolError> {
    if wanted.is_empty() {
        return Ok(());
    }
    if wanted.len() > TENANTS_MAX {
        return Err(EnrolError::TooMany(wanted.len()));
    }
    if state.tenants_lost {
        return Err(EnrolError::Unknown);
    }
    for (name, epoch) in wanted {
        let known = state.tenants.iter().find(|tenant| tenant.name == *name);
        if let Some(tenant) = known.filter(|tenant| *epoch < tenant.epoch) {
            return Err(EnrolError::Epoch {
                name: name.clone(),
                configured: *epoch,
                seen: tenant.epoch,
            });
        }
    }
    Ok(())
}
