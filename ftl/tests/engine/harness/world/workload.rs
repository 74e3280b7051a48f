//! The random operations of a [`World`], and what becomes of the pages they ask for.

use std::collections::BTreeSet;

use ftl::{
    AtomicBatch, CommitError, GRAIN_BYTES, Get, GetError, GrainState, Intent, Lba, LbaRange,
    PageRef, Port, Remap,
};

use super::{Asked, World, violation};
use crate::harness::oracle::{Promise, Violation};

impl World {
    pub(super) fn issue(&mut self) -> Result<(), Violation> {
        if self.options.lazy && !self.rng.one_in(100) {
            return match self.rng.below(8) {
                0 => self.write_some(),
                1 => self.read_one(),
                _ => self.overwrite(),
            };
        }
        if self.options.remapping && self.rng.one_in(5) {
            return self.remap();
        }
        if self.options.cloning && self.rng.one_in(5) {
            return self.clone_range();
        }
        match self.rng.below(100) {
            0..30 => self.overwrite(),
            30..48 => self.write_some(),
            48..60 => self.read_one(),
            60..68 => {
                let range = self.random_range(40);
                self.start_sync(range);
                Ok(())
            }
            68..71 => {
                self.start_sync(LbaRange::ALL);
                Ok(())
            }
            71..85 => self.commit(),
            85..93 => self.trim(),
            93..95 => self.hold(),
            95 => self.remap(),
            96 | 97 => self.clone_range(),
            _ => {
                for _ in 0..12 {
                    self.overwrite()?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn overwrite(&mut self) -> Result<(), Violation> {
        let Some(lba) = self.free_lba() else {
            return Ok(());
        };
        let bytes = self.random_bytes(GRAIN_BYTES);
        let durable = !self.options.lazy && self.rng.one_in(8);
        let write = Asked::Write {
            lba,
            offset: 0,
            bytes,
            durable,
        };
        self.ask(lba, Intent::Overwrite, write)
    }

    fn write_some(&mut self) -> Result<(), Violation> {
        let Some(lba) = self.free_lba() else {
            return Ok(());
        };
        let (offset, bytes) = self.random_patch();
        let durable = !self.options.lazy && self.rng.one_in(4);
        let write = Asked::Write {
            lba,
            offset,
            bytes,
            durable,
        };
        self.ask(lba, Intent::Write, write)
    }

    fn read_one(&mut self) -> Result<(), Violation> {
        let Some(lba) = self.free_lba() else {
            return Ok(());
        };
        let since = self.oracle.version(lba);
        self.ask(lba, Intent::Read, Asked::Read { lba, since })
    }

    pub(super) fn ask(&mut self, lba: u64, intent: Intent, asked: Asked) -> Result<(), Violation> {
        let token = self.token();
        self.trace(lba, || format!("get for {intent:?} as {token:?}"));
        let port = self.random_port();
        match self.ftl.get(port, Lba(lba), intent, token) {
            Get::Ready(page) => self.use_page(port, page, asked),
            Get::Failed(error) => self.get_failed(&asked, error),
            Get::Pending => {
                if matches!(asked, Asked::Write { .. }) {
                    self.writing.add(lba);
                }
                self.asked.insert(token.0, asked);
                Ok(())
            }
        }
    }

    pub(super) fn get_failed(&mut self, asked: &Asked, error: GetError) -> Result<(), Violation> {
        let lba = match asked {
            Asked::Back => {
                self.read_back = Some(Err(error));
                return Ok(());
            }
            Asked::Read { lba, .. } | Asked::Write { lba, .. } => *lba,
        };
        match error {
            GetError::NoSpace => {
                self.stats.no_space += 1;
                let Asked::Write { .. } = asked else {
                    return violation("a read found no space");
                };
                let others = self.writing.len() + self.locked.len() + self.unlocked;
                let mapped = self.oracle.mapped() + others;
                let capacity = self.capacity();
                if !self.is_in_doubt()
                    && (self.oracle.current(lba).is_mapped() || mapped < capacity)
                {
                    return violation(format!(
                        "no space for LBA {lba} with {mapped} of {capacity} grains mapped"
                    ));
                }
                Ok(())
            }
            _ if self.failures.expected => {
                self.failures.gets += 1;
                match error {
                    GetError::Damaged { .. } => self.failures.damaged += 1,
                    GetError::Failed(_) => self.failures.volume_failed = true,
                    _ => {}
                }
                Ok(())
            }
            error => violation(format!("get of LBA {lba}: {error}")),
        }
    }

    pub(super) fn use_page(
        &mut self,
        port: Port,
        page: PageRef,
        asked: Asked,
    ) -> Result<(), Violation> {
        let mut seen = vec![0; GRAIN_BYTES];
        self.trace(page.lba().0, || {
            format!("page, current {:?}", self.oracle.version(page.lba().0))
        });
        match asked {
            Asked::Back => {
                page.copy_out(0, &mut seen);
                self.read_back = Some(Ok(seen));
            }
            Asked::Read { lba, since } => {
                page.copy_out(0, &mut seen);
                let right = if self.is_in_doubt() {
                    self.oracle.not_older_than_durable(lba, &seen)
                } else {
                    self.oracle.seen_since(lba, since, &seen)
                };
                if !right {
                    return violation(format!(
                        "read of LBA {lba} shows {:02x?}.., current is {:?}; {}",
                        &seen[..16],
                        self.oracle.current(lba),
                        self.oracle.recall(lba, &seen)
                    ));
                }
                if self.rng.one_in(6) && self.held.len() < self.options.held_max {
                    self.held.push(page);
                }
            }
            Asked::Write {
                lba,
                offset,
                bytes,
                durable,
            } => {
                if bytes.len() < GRAIN_BYTES {
                    page.copy_out(0, &mut seen);
                    if !self.is_in_doubt() && seen != self.oracle.current(lba).bytes() {
                        return violation(format!(
                            "LBA {lba} to be changed shows {:02x?}.., current is {:?}",
                            &seen[..16],
                            self.oracle.current(lba)
                        ));
                    }
                }
                page.copy_in(offset, &bytes);
                let promise = self.oracle.write(lba, offset, &bytes);
                if durable {
                    let token = self.promise(promise, Vec::new());
                    self.trace(lba, || format!("put durable as {token:?}"));
                    self.ftl.put_durable(port, page, token);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn start_sync(&mut self, range: LbaRange) {
        let token = self.promise(self.sync_promise(range), Vec::new());
        let port = self.random_port();
        self.trace_range(range, || format!("sync as {token:?}"));
        self.ftl.sync(port, range, token);
    }

    pub(super) fn sync_promise(&self, range: LbaRange) -> Promise {
        let mut promise = self.oracle.sync(range, |lba| self.locked.contains(lba));
        promise.add(self.unsynced.clone());
        promise
    }

    /// Trims something, and waits until that is over.
    pub(crate) fn forget_some(&mut self, observer: &mut super::Observer) -> Result<(), Violation> {
        self.held.clear();
        self.trim()?;
        self.settle(observer)
    }

    fn trim(&mut self) -> Result<(), Violation> {
        let length = if self.rng.one_in(12) { 1000 } else { 12 };
        let range = self.random_range(length);
        if self
            .oracle
            .within(range)
            .iter()
            .any(|lba| self.is_busy(*lba))
        {
            return Ok(());
        }
        let grains = self.oracle.within(range);
        let mapped = grains
            .iter()
            .copied()
            .find(|lba| self.oracle.current(*lba).is_mapped());
        let promise = self.oracle.trim(range);
        let token = self.promise(promise, grains.clone());
        self.trace_range(range, || format!("trim as {token:?}"));
        let port = self.random_port();
        if let Err(error) = self.ftl.trim(port, range, token) {
            return violation(format!("trim refused: {error}"));
        }
        // It may wait behind a batch that waits for pages.
        let took_effect =
            |lba| self.ftl.is_map_loaded() && self.ftl.state(Lba(lba)) == GrainState::Unmapped;
        if mapped.is_some_and(took_effect) {
            self.promises
                .insert(token.0, (self.promises[&token.0].0.clone(), Vec::new()));
            self.unlocked += grains.len() as u64;
        } else {
            grains.iter().for_each(|lba| self.locked.add(*lba));
        }
        self.stats.trims += 1;
        Ok(())
    }

    /// A few grains change their name, within a cluster or between clusters.
    fn remap(&mut self) -> Result<(), Violation> {
        let count = 1 + self.rng.below(8);
        let (from, to) = (Lba(self.random_lba()), Lba(self.random_lba()));
        if from.0.max(to.0) + count > Lba::END.0 || from.0.abs_diff(to.0) < count {
            return Ok(());
        }
        let remap = Remap { from, to, count };
        let mut grains = self.oracle.within(remap.source());
        let targets = self.oracle.within(remap.target());
        let is_whole = grains.len() as u64 == count && targets.len() as u64 == count;
        grains.extend(targets);
        if !is_whole || grains.iter().any(|lba| self.is_busy(*lba)) {
            return Ok(());
        }
        if !self.rng.one_in(4) {
            self.held
                .retain(|page| !remap.source().contains(page.lba()));
        }
        let mut sources = grains[..count as usize].iter().copied();
        let mapped = sources.find(|lba| self.oracle.current(*lba).is_mapped());
        let port = self.random_port();
        let promise = self.oracle.remap(port.0, remap);
        let token = self.promise(promise, grains.clone());
        for lba in &grains {
            self.trace(*lba, || format!("{remap:?} as {token:?}"));
        }
        if let Err(error) = self.ftl.remap(port, from, to, count, token) {
            return violation(format!("remap refused: {error}"));
        }
        self.stats.remaps += 1;
        // It may wait behind a batch that waits for pages, or for a page that is held.
        let took_effect =
            |lba| self.ftl.is_map_loaded() && self.ftl.state(Lba(lba)) == GrainState::Unmapped;
        if mapped.is_some_and(took_effect) {
            self.promises
                .insert(token.0, (self.promises[&token.0].0.clone(), Vec::new()));
        } else {
            grains.iter().for_each(|lba| self.locked.add(*lba));
        }
        Ok(())
    }

    /// A few grains get other names, within a cluster or between clusters.
    fn clone_range(&mut self) -> Result<(), Violation> {
        let count = 1 + self.rng.below(8);
        let (from, to) = (Lba(self.random_lba()), Lba(self.random_lba()));
        if from.0.max(to.0) + count > Lba::END.0 || from.0.abs_diff(to.0) < count {
            return Ok(());
        }
        let clone = Remap { from, to, count };
        let mut grains = self.oracle.within(clone.source());
        let targets = self.oracle.within(clone.target());
        let is_whole = grains.len() as u64 == count && targets.len() as u64 == count;
        grains.extend(&targets);
        if !is_whole || grains.iter().any(|lba| self.is_busy(*lba)) {
            return Ok(());
        }
        let mapped = |lbas: &[u64]| {
            lbas.iter()
                .filter(|l| self.oracle.current(**l).is_mapped())
                .count() as u64
        };
        let (named, gone) = (mapped(&grains[..count as usize]), mapped(&targets));
        let others = self.writing.len() + self.locked.len();
        if self.oracle.mapped() + others + named - gone > self.capacity() {
            return Ok(());
        }
        if !self.rng.one_in(4) {
            self.held
                .retain(|page| !clone.source().contains(page.lba()));
        }
        // A target that turns from unmapped to mapped, or the other way, tells when it has taken effect.
        let is_mapped = |lba: u64| self.oracle.current(lba).is_mapped();
        let sign = targets
            .iter()
            .copied()
            .find(|lba| is_mapped(lba - to.0 + from.0) != is_mapped(*lba));
        let port = self.random_port();
        let promise = self.oracle.clone_range(port.0, clone);
        let token = self.promise(promise, grains.clone());
        for lba in &grains {
            self.trace(*lba, || format!("clone {clone:?} as {token:?}"));
        }
        if let Err(error) = self.ftl.clone_range(port, from, to, count, token) {
            return violation(format!("clone refused: {error}"));
        }
        self.stats.clones += 1;
        let took_effect = |lba: u64| {
            let is_mapped = self.oracle.current(lba).is_mapped();
            self.ftl.is_map_loaded()
                && (self.ftl.state(Lba(lba)) != GrainState::Unmapped) == is_mapped
        };
        if sign.is_some_and(took_effect) {
            self.promises
                .insert(token.0, (self.promises[&token.0].0.clone(), Vec::new()));
        } else {
            grains.iter().for_each(|lba| self.locked.add(*lba));
        }
        Ok(())
    }

    /// Grains of different places, changed together; also ranges forgotten and reserved.
    fn commit(&mut self) -> Result<(), Violation> {
        let mut batch = AtomicBatch::new();
        let mut touched = BTreeSet::new();
        for _ in 0..self.rng.below(5) {
            let lba = self.random_lba();
            if self.is_busy(lba) {
                continue;
            }
            let (offset, bytes) = if self.rng.one_in(2) {
                (0, self.random_bytes(GRAIN_BYTES))
            } else {
                self.random_patch()
            };
            batch.patch(Lba(lba), offset as u16, bytes);
            touched.insert(lba);
        }
        for zero in [false, true] {
            let range = self.random_range(6);
            let inside = self.oracle.within(range);
            let taken = |lba: &u64| touched.contains(lba) || self.is_busy(*lba);
            let foreign = zero && inside.len() as u64 != range.count;
            let rare = if zero && self.options.reserving { 1 } else { 3 };
            if foreign || inside.iter().any(taken) || !self.rng.one_in(rare) {
                continue;
            }
            touched.extend(inside);
            if zero {
                batch.zero(range);
            } else {
                batch.trim(range);
            }
        }
        if touched.is_empty() || self.would_overflow(&batch) {
            return Ok(());
        }
        let port = self.random_port();
        let relaxed = self.rng.one_in(3);
        let along = self.random_range(40);
        let along = (!relaxed && self.rng.one_in(2)).then_some(along);
        // Before what the batch itself changes.
        let goes_along = along.map(|range| self.sync_promise(range));
        let mut promise = self.oracle.commit(port.0, &batch);
        let mut alone = None;
        if let Some(goes_along) = goes_along {
            alone = Some((batch.clone(), promise.clone()));
            self.oracle.goes_along(port.0, &mut promise, goes_along);
            batch.along = along;
        }
        let grains: Vec<u64> = touched.into_iter().collect();
        let token = self.promise(promise, grains.clone());
        for lba in &grains {
            self.locked.add(*lba);
        }
        for lba in &grains {
            self.trace(*lba, || format!("commit as {token:?}"));
        }
        let patched = batch.patches.first().map(|patch| patch.0);
        let submitted = if relaxed {
            self.relaxed.insert(token.0);
            self.stats.relaxed += 1;
            self.ftl.commit_relaxed(port, batch, token)
        } else {
            let submitted = self.ftl.commit(port, batch, token);
            if let (Err(CommitError::ManyAlong), Some((batch, mut promise))) = (submitted, alone) {
                self.oracle.goes_alone(port.0, &mut promise);
                if let Some(entry) = self.promises.get_mut(&token.0) {
                    entry.0 = promise;
                }
                self.ftl.commit(port, batch, token)
            } else {
                self.stats.along += u64::from(along.is_some());
                submitted
            }
        };
        if let Err(error) = submitted {
            return violation(format!("commit refused: {error}"));
        }
        self.stats.batches += 1;
        if self.took_effect(patched) {
            self.locked.remove(&grains);
            if let Some(entry) = self.promises.get_mut(&token.0) {
                entry.1.clear();
            }
        }
        Ok(())
    }

    /// Whether a commit that was just submitted is visible already: nothing had to be read for it.
    fn took_effect(&self, patched: Option<Lba>) -> bool {
        let Some(lba) = patched else {
            return false;
        };
        let Some(page) = self.ftl.try_get(lba, Intent::Read) else {
            return false;
        };
        let mut seen = vec![0; GRAIN_BYTES];
        page.copy_out(0, &mut seen);
        seen == self.oracle.current(lba.0).bytes()
    }

    fn would_overflow(&self, batch: &AtomicBatch) -> bool {
        let patched = batch.patches.iter().map(|patch| patch.0.0);
        let zeroed = batch
            .zeros
            .iter()
            .flat_map(|range| self.oracle.within(*range));
        let new = patched
            .chain(zeroed)
            .filter(|lba| !self.oracle.current(*lba).is_mapped())
            .count() as u64;
        self.oracle.mapped() + self.writing.len() + self.locked.len() + new > self.capacity()
    }

    /// Keeps pages pinned for a while, or lets them go.
    fn hold(&mut self) -> Result<(), Violation> {
        if !self.held.is_empty() && self.rng.one_in(2) {
            let n = self.rng.below(self.held.len() as u64) as usize;
            self.held.swap_remove(n);
            return Ok(());
        }
        self.read_one()
    }

    pub(super) fn random_port(&mut self) -> Port {
        Port(self.rng.below(u64::from(self.options.ports)) as u16)
    }

    /// A grain, half of the time of the hot fifth.
    fn random_lba(&mut self) -> u64 {
        let all = self.universe.len();
        let bound = if self.rng.one_in(2) { all / 5 } else { all };
        self.universe[self.rng.below(bound as u64) as usize]
    }

    fn free_lba(&mut self) -> Option<u64> {
        let lba = self.random_lba();
        (!self.locked.contains(lba)).then_some(lba)
    }

    fn random_range(&mut self, count_max: u64) -> LbaRange {
        let start = Lba(self.random_lba());
        let count = 1 + self.rng.below(count_max);
        LbaRange::new(start, count.min(Lba::END.0 - start.0))
    }

    fn random_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn random_patch(&mut self) -> (usize, Vec<u8>) {
        let offset = self.rng.below(GRAIN_BYTES as u64 - 16) as usize;
        // At least 16 bytes: no two versions are equal by chance.
        let len = 16 + self.rng.below((GRAIN_BYTES - offset - 15) as u64) as usize;
        (offset, self.random_bytes(len))
    }
}
