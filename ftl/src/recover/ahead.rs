//! Reading on suspicion: grains that will be asked for if a chain goes on as it has been going.

use super::io::MediaIo;
use crate::addr::Pba;
use crate::device::MediaError;
use crate::format::GrainBytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Grains read on suspicion that are kept, or on their way: 16 MiB.
const SUSPECTS_MAX: usize = 4096;

type Answer = Result<Box<GrainBytes>, MediaError>;

/// A grain that is read on suspicion.
#[derive(Debug)]
enum Suspect {
    /// The read is under way.
    Asked,
    /// It is, and somebody wants the grain by now.
    Wanted,
    /// It is over.
    Here(Answer),
}

/// Reads of which some may turn out not to be needed.
pub(super) struct ReadAhead<'a, 'd> {
    io: &'a mut MediaIo<'d>,
    suspects: HashMap<Pba, Suspect>,
    /// Of these, how many are here.
    here: usize,
    /// Wanted after they had been read.
    ready: Vec<(Pba, Answer)>,
}

impl<'a, 'd> ReadAhead<'a, 'd> {
    /// Goes on with the reads that `io` has been asked for, each tagged with its place.
    pub(super) fn new(io: &'a mut MediaIo<'d>) -> Self {
        Self {
            io,
            suspects: HashMap::new(),
            here: 0,
            ready: Vec::new(),
        }
    }

    /// Asks for a grain.
    pub(super) fn want(&mut self, at: Pba) {
        match self.suspects.remove(&at) {
            None => self.io.want(at.0, at),
            Some(Suspect::Here(answer)) => {
                self.here -= 1;
                self.ready.push((at, answer));
            }
            Some(Suspect::Asked | Suspect::Wanted) => {
                self.suspects.insert(at, Suspect::Wanted);
            }
        }
    }

    /// Reads a grain that may be asked for, unless there are too many of the kind. Chains that did not go on as they had
    /// leave some behind that nobody asks for any more.
    pub(super) fn suspect(&mut self, at: Pba) {
        if self.suspects.len() >= SUSPECTS_MAX {
            if self.here < SUSPECTS_MAX / 2 {
                return;
            }
            // Who wants one of them after all has it read again.
            self.suspects.retain(|_, s| !matches!(s, Suspect::Here(_)));
            self.here = 0;
        }
        if let Entry::Vacant(place) = self.suspects.entry(at) {
            place.insert(Suspect::Asked);
            self.io.want(at.0, at);
        }
    }

    /// The next grain that was asked for; `None` when none is left.
    pub(super) fn next(&mut self) -> Option<(Pba, Answer)> {
        if let Some(ready) = self.ready.pop() {
            return Some(ready);
        }
        loop {
            let (tag, answer) = self.io.next()?;
            let at = Pba(tag);
            match self.suspects.get_mut(&at) {
                Some(suspect @ Suspect::Asked) => {
                    *suspect = Suspect::Here(answer);
                    self.here += 1;
                }
                Some(Suspect::Wanted) => {
                    self.suspects.remove(&at);
                    return Some((at, answer));
                }
                // Asked for twice: who suspected it has its answer.
                Some(Suspect::Here(_)) | None => return Some((at, answer)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GRAIN_BYTES;
    use crate::device::MemDevice;

    const GRAINS: u64 = 3 * SUSPECTS_MAX as u64;

    /// Whoever wants a grain gets it once, whether it was suspected before, meanwhile or never; a suspicion alone answers
    /// nobody. However many are suspected, what is kept is bounded, and nothing that is wanted goes missing.
    #[test]
    fn wanted_grains_come_once() {
        let mut device = MemDevice::new(GRAINS as usize * GRAIN_BYTES).expect("memory");
        let mut io = MediaIo::new(&mut device).expect("memory");
        let mut reads = ReadAhead::new(&mut io);
        let mut got = Vec::new();
        for round in 0..3 {
            for at in (0..GRAINS).filter(|at| at % 3 != 1) {
                reads.suspect(Pba(at));
                assert!(reads.suspects.len() <= SUSPECTS_MAX);
            }
            let wanted = (0..GRAINS).filter(|at| at % 7 == round);
            wanted.for_each(|at| reads.want(Pba(at)));
            while let Some((at, answer)) = reads.next() {
                assert!(answer.is_ok());
                got.push((round, at.0));
            }
        }
        got.sort_unstable();
        let all = (0..3).flat_map(|round| {
            let wanted = (0..GRAINS).filter(move |at| at % 7 == round);
            wanted.map(move |at| (round, at))
        });
        assert!(got.into_iter().eq(all));
    }
}
