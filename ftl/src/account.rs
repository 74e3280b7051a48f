//! Accounts: ranges of LBAs that are counted together, with a limit to the grains that may be mapped in them.
//!
//! The layer above says which ranges belong to which account, and says it again after every opening: nothing of this
//! is on the media. What the counts are worth is argued in `docs/accounts.md`.
//!
//! # Invariants
//! - A1. Ranges are disjoint, not empty, and neighbours of one account are one range.
//! - A2. `used` of an account is the number of mapped grains in its ranges, of the part of the map that is in memory.

use crate::addr::{Lba, LbaRange};
use std::collections::BTreeMap;
use std::fmt;

/// Who is charged for mapped grains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u32);

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "account {}", self.0)
    }
}

/// How full an account is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountUse {
    /// Grains mapped in its ranges.
    pub used: u64,
    /// Grains that may be; none: as many as there are.
    pub limit: Option<u64>,
}

impl AccountUse {
    /// Whether `more` grains fit. What is beyond the limit already may stay, and nothing that adds none is refused.
    fn has_room(self, more: u64) -> bool {
        more == 0
            || self
                .limit
                .is_none_or(|limit| self.used.saturating_add(more) <= limit)
    }
}

/// All accounts of a volume.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By the first grain: the first grain behind, and the account.
    ranges: BTreeMap<Lba, (Lba, AccountId)>,
    uses: BTreeMap<AccountId, AccountUse>,
}

impl Accounts {
    /// Whether no range belongs to any.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The account of a grain.
    pub(crate) fn of(&self, lba: Lba) -> Option<AccountId> {
        if self.ranges.is_empty() {
            return None;
        }
        let (_, &(end, account)) = self.ranges.range(..=lba).next_back()?;
        (lba < end).then_some(account)
    }

    /// The parts of a range that belong to one account or to none, ascending.
    pub(crate) fn pieces(&self, range: LbaRange) -> Vec<(LbaRange, Option<AccountId>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let span = |from: Lba, to: Lba| LbaRange::new(from, to.0 - from.0);
        while at < range.end() {
            let here = self.ranges.range(..=at).next_back();
            let here = here.filter(|&(_, &(end, _))| at < end);
            let (end, account) = match here {
                Some((_, &(end, account))) => (end, Some(account)),
                None => {
                    let next = self.ranges.range(at..).next();
                    (next.map_or(range.end(), |(&start, _)| start), None)
                }
            };
            let end = end.min(range.end());
            pieces.push((span(at, end), account));
            at = end;
        }
        pieces
    }

    /// A grain gets mapped.
    pub(crate) fn charge(&mut self, lba: Lba) {
        if let Some(account) = self.of(lba) {
            self.uses.entry(account).or_default().used += 1;
        }
    }

    /// A grain is not mapped any more.
    pub(crate) fn credit(&mut self, lba: Lba) {
        if let Some(account) = self.of(lba) {
            self.take(account, 1);
        }
    }

    fn take(&mut self, account: AccountId, grains: u64) {
        let known = self.uses.entry(account).or_default();
        assert!(known.used >= grains, "{account:?} used below zero");
        known.used -= grains;
        self.forget_if_idle(account);
    }

    fn forget_if_idle(&mut self, account: AccountId) {
        if self.uses.get(&account) == Some(&AccountUse::default()) {
            self.uses.remove(&account);
        }
    }

    /// A range in which `mapped` grains are mapped, and which belonged to one account or to none, belongs to this one.
    pub(crate) fn assign(&mut self, range: LbaRange, mapped: u64, account: Option<AccountId>) {
        if range.count == 0 {
            return;
        }
        if let Some(before) = self.of(range.start) {
            self.take(before, mapped);
        }
        self.cut_out(range);
        let Some(account) = account else { return };
        if mapped > 0 {
            self.uses.entry(account).or_default().used += mapped;
        }
        let (mut start, mut end) = (range.start, range.end());
        if let Some((&before, &(touches, same))) = self.ranges.range(..start).next_back()
            && touches == start
            && same == account
        {
            start = before;
        }
        if let Some(&(behind, same)) = self.ranges.get(&end)
            && same == account
        {
            self.ranges.remove(&end);
            end = behind;
        }
        self.ranges.insert(start, (end, account));
    }

    /// Nobody has a range any more.
    fn cut_out(&mut self, range: LbaRange) {
        let (start, end) = (range.start, range.end());
        if let Some((&before, &(reaches, account))) = self.ranges.range(..start).next_back()
            && reaches > start
        {
            self.ranges.insert(before, (start, account));
            if reaches > end {
                self.ranges.insert(end, (reaches, account));
            }
        }
        let inside: Vec<Lba> = self.ranges.range(start..end).map(|(&at, _)| at).collect();
        for at in inside {
            if let Some((reaches, account)) = self.ranges.remove(&at)
                && reaches > end
            {
                self.ranges.insert(end, (reaches, account));
            }
        }
    }

    /// Sets or removes the limit of an account.
    pub(crate) fn limit(&mut self, account: AccountId, limit: Option<u64>) {
        self.uses.entry(account).or_default().limit = limit;
        self.forget_if_idle(account);
    }

    /// How full an account is.
    pub(crate) fn usage(&self, account: AccountId) -> AccountUse {
        self.uses.get(&account).copied().unwrap_or_default()
    }

    /// Whether an account has a limit.
    pub(crate) fn is_limited(&self, account: AccountId) -> bool {
        self.usage(account).limit.is_some()
    }

    /// Whether `more` grains of an account may be mapped.
    pub(crate) fn has_room(&self, account: AccountId, more: u64) -> bool {
        self.usage(account).has_room(more)
    }

    /// All that are known.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (AccountId, AccountUse)> + '_ {
        self.uses.iter().map(|(&account, &known)| (account, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A1: random assignments give what a plain table of grains gives, and what belongs together is one range.
    #[test]
    fn as_a_plain_table() {
        let mut dice: u64 = 3;
        let mut roll = |n: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % n
        };
        const GRAINS: u64 = 40;
        let mut accounts = Accounts::default();
        let mut table = [None; GRAINS as usize];
        for _ in 0..20_000 {
            let start = roll(GRAINS);
            let range = LbaRange::new(Lba(start), roll(GRAINS - start + 1));
            let account = [None, Some(AccountId(1)), Some(AccountId(2))][roll(3) as usize];
            for (piece, _) in accounts.pieces(range) {
                accounts.assign(piece, 0, account);
            }
            table[start as usize..range.end().0 as usize].fill(account);
            for lba in 0..GRAINS {
                assert_eq!(accounts.of(Lba(lba)), table[lba as usize], "LBA {lba}");
            }
            let all = accounts.pieces(LbaRange::new(Lba(0), GRAINS));
            let runs = table.chunk_by(|a, b| a == b);
            let runs: Vec<_> = runs.map(|run| (run.len() as u64, run[0])).collect();
            let got: Vec<_> = all.iter().map(|(range, id)| (range.count, *id)).collect();
            assert_eq!(got, runs);
            assert_eq!(
                accounts.ranges.len(),
                runs.iter().filter(|r| r.1.is_some()).count()
            );
        }
    }
}
