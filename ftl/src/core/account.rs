//! Accounts: what a batch does to them, and giving ranges from one to another. See `docs/accounts.md`.

use super::commit::merged;
use super::{Core, Cx, PendingCommit};
use crate::account::{AccountId, AccountUse};
use crate::addr::{Lba, LbaRange};
use std::collections::{BTreeMap, BTreeSet};

/// What an account says to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// Not before all of the map has been read: until then too little is counted.
    Unknown,
    Exceeds,
}

impl Core {
    /// These ranges belong to this account from now on, with what is mapped in them.
    pub(crate) fn assign(&mut self, cx: Cx<'_>, ranges: &[LbaRange], account: Option<AccountId>) {
        for &range in ranges {
            for (piece, before) in self.accounts.pieces(range) {
                if before != account {
                    let mapped = self.mapped_count(cx, piece);
                    self.accounts.assign(piece, mapped, account);
                }
            }
        }
    }

    /// As `assign`, if that does not go beyond the limit of the account.
    pub(crate) fn assign_if_room(
        &mut self,
        cx: Cx<'_>,
        ranges: &[LbaRange],
        account: AccountId,
    ) -> bool {
        let pieces = ranges.iter().flat_map(|&range| self.accounts.pieces(range));
        let others = pieces.filter(|&(_, before)| before != Some(account));
        let more = others.map(|(piece, _)| self.mapped_count(cx, piece)).sum();
        let fits = self.accounts.has_room(account, more);
        if fits {
            self.assign(cx, ranges, Some(account));
        }
        fits
    }

    pub(crate) fn limit_account(&mut self, account: AccountId, limit: Option<u64>) {
        self.accounts.limit(account, limit);
    }

    pub(crate) fn account_use(&self, account: AccountId) -> AccountUse {
        self.accounts.usage(account)
    }

    /// What an account says to one more grain that gets mapped.
    pub(super) fn judge_grain(&self, lba: Lba) -> Verdict {
        match self.accounts.of(lba) {
            Some(account) => self.judge(account, 1),
            None => Verdict::Fits,
        }
    }

    fn judge(&self, account: AccountId, more: u64) -> Verdict {
        if !self.accounts.is_limited(account) {
            Verdict::Fits
        } else if !self.accounts.has_room(account, more) {
            Verdict::Exceeds
        } else if self.cold.is_warm() {
            Verdict::Fits
        } else {
            Verdict::Unknown
        }
    }

    /// What the accounts say to a batch. One that adds nothing to an account is never refused by it.
    pub(super) fn judge_batch(&self, cx: Cx<'_>, commit: &PendingCommit) -> Verdict {
        let grown = self.changes_of_accounts(cx, commit).into_iter();
        let grown = grown.filter(|&(_, by)| by > 0);
        let verdicts = grown.map(|(account, by)| self.judge(account, by as u64));
        verdicts.fold(Verdict::Fits, |all, one| match (all, one) {
            (Verdict::Fits, verdict) => verdict,
            (_, Verdict::Exceeds) => Verdict::Exceeds,
            (all, _) => all,
        })
    }

    /// By how many grains each account grows with a batch.
    fn changes_of_accounts(&self, cx: Cx<'_>, commit: &PendingCommit) -> BTreeMap<AccountId, i64> {
        let mut changes = BTreeMap::new();
        if self.accounts.is_empty() {
            return changes;
        }
        let mut note = |account: Option<AccountId>, by: i64| {
            if let Some(account) = account.filter(|_| by != 0) {
                *changes.entry(account).or_default() += by;
            }
        };
        let of = |lba: Lba| self.accounts.of(lba);
        let is_mapped = |lba: Lba| self.mapped_count(cx, LbaRange::new(lba, 1)) > 0;
        let patched: BTreeSet<Lba> = commit.wanted.iter().map(|w| w.lba).collect();
        let fresh: Vec<Lba> = patched.iter().copied().filter(|&l| !is_mapped(l)).collect();
        for &lba in &fresh {
            note(of(lba), 1);
        }
        let batch = &commit.batch;
        if fresh.is_empty() && batch.zeros.is_empty() && batch.renamed().next().is_none() {
            // What only takes away needs no look at what that is.
            return BTreeMap::new();
        }
        let (trims, zeros) = (merged(&batch.trims), merged(&batch.zeros));
        // What a trim and a patch both name stays.
        let goes = |lba: Lba| trims.iter().any(|t| t.contains(lba)) && !patched.contains(&lba);
        for &trim in &trims {
            for (piece, account) in self.accounts.pieces(trim) {
                if account.is_some() {
                    let gone = self.mapped_in(cx, piece).filter(|&lba| goes(lba));
                    note(account, -(gone.count() as i64));
                }
            }
        }
        for &zero in &zeros {
            for (piece, account) in self.accounts.pieces(zero) {
                if account.is_some() {
                    let stay = self.mapped_in(cx, piece).filter(|&lba| !goes(lba));
                    let new = fresh.iter().filter(|&&lba| piece.contains(lba));
                    let reserved = piece.count as i64 - stay.count() as i64 - new.count() as i64;
                    note(account, reserved);
                }
            }
        }
        for renaming in batch.renamed() {
            for (piece, account) in self.accounts.pieces(renaming.target()) {
                if account.is_some() {
                    note(account, -(self.mapped_count(cx, piece) as i64));
                }
            }
        }
        for clone in &batch.clones {
            for lba in self.mapped_in(cx, clone.source()) {
                note(of(clone.renamed(lba)), 1);
            }
        }
        for remap in &batch.remaps {
            let one = |range| match self.accounts.pieces(range)[..] {
                [(_, account)] => Some(account),
                _ => None,
            };
            let (from, to) = (one(remap.source()), one(remap.target()));
            if from.is_some() && from == to {
                continue;
            }
            for lba in self.mapped_in(cx, remap.source()) {
                note(of(lba), -1);
                note(of(remap.renamed(lba)), 1);
            }
        }
        changes
    }
}
