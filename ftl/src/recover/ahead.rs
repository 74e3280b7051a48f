//! Reading on suspicion: grains that will be asked for if a chain goes on as it has been going.

use super::io::MediaIo;
use crate::addr::Pba;
use crate::device::MediaError;
use crate::format::GrainBytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

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
    /// Wanted after they had been read.
    ready: Vec<(Pba, Answer)>,
}

impl<'a, 'd> ReadAhead<'a, 'd> {
    /// Goes on with the reads that `io` has been asked for, each tagged with its place.
    pub(super) fn new(io: &'a mut MediaIo<'d>) -> Self {
        Self {
            io,
            suspects: HashMap::new(),
            ready: Vec::new(),
        }
    }

    /// Asks for a grain.
    pub(super) fn want(&mut self, at: Pba) {
        match self.suspects.remove(&at) {
            None => self.io.want(at.0, at),
            Some(Suspect::Here(answer)) => self.ready.push((at, answer)),
            Some(Suspect::Asked | Suspect::Wanted) => {
                self.suspects.insert(at, Suspect::Wanted);
            }
        }
    }

    /// Reads a grain that may be asked for.
    pub(super) fn suspect(&mut self, at: Pba) {
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
                Some(suspect @ Suspect::Asked) => *suspect = Suspect::Here(answer),
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
