//! What the kernel has asked for, and how long it took until it was answered.

use std::sync::Arc;
use std::time::Instant;

use ftl::{Meter, Metered};

use super::wire::{InHeader, WriteIn, opcode};

/// The requests of a mount so far. Clones are the same.
#[derive(Clone, Debug)]
pub struct Requests(Arc<[Meter]>);

/// A request that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    opcode: u32,
    /// Bytes that it brings to be written.
    brought: u64,
    at: Instant,
}

impl Asked {
    /// Now.
    pub(super) fn now(header: &InHeader) -> Self {
        let around = size_of::<InHeader>() + size_of::<WriteIn>();
        Self {
            opcode: header.opcode,
            brought: match header.opcode {
                opcode::WRITE => u64::from(header.len).saturating_sub(around as u64),
                _ => 0,
            },
            at: Instant::now(),
        }
    }
}

impl Default for Requests {
    fn default() -> Self {
        let codes = opcode::ALL.iter().map(|&(code, _)| code);
        let count = codes.max().map_or(0, |last| last as usize + 1);
        Self((0..count).map(|_| Meter::default()).collect())
    }
}

impl Requests {
    /// A request has been answered, with `error` (0, or a negative errno) or with so many bytes.
    pub(super) fn answered(&self, asked: &Asked, error: i32, bytes: u64) {
        let Some(meter) = self.0.get(asked.opcode as usize) else {
            return;
        };
        let moved = match asked.opcode {
            opcode::READ => bytes,
            _ => asked.brought,
        };
        // That there is none is what was asked for: the kernel asks for names before it makes them, and for attributes of which most
        // files have none.
        let is_none = matches!(
            (asked.opcode, -error),
            (opcode::LOOKUP, libc::ENOENT) | (opcode::GETXATTR, libc::ENODATA)
        );
        let is_done = error == 0 || is_none;
        meter.note(asked.at.elapsed(), is_done.then_some(moved));
    }

    /// Those of each kind that there were any of, with the names of their opcodes (`GETATTR`), and how long it took until they were
    /// answered. Those that failed were answered with an error, but for looks for what there is not. Bytes are those of files, read or
    /// written.
    pub fn read(&self) -> Vec<(&'static str, Metered)> {
        let all = opcode::ALL.iter();
        let read = all.map(|&(code, name)| (name, self.0[code as usize].read()));
        read.filter(|(_, metered)| metered.count() > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u32, len: usize) -> InHeader {
        InHeader {
            len: len as u32,
            opcode,
            ..InHeader::default()
        }
    }

    /// Reads and writes are counted with the bytes of files, and those that failed without.
    #[test]
    fn bytes_of_files() {
        let requests = Requests::default();
        let write = size_of::<InHeader>() + size_of::<WriteIn>() + 4096;
        let write = Asked::now(&header(opcode::WRITE, write));
        requests.answered(&write, 0, 8);
        requests.answered(&write, -libc::ENOSPC, 0);
        let read = Asked::now(&header(opcode::READ, 80));
        requests.answered(&read, 0, 100);
        let lookup = Asked::now(&header(opcode::LOOKUP, 50));
        requests.answered(&lookup, 0, 128);
        requests.answered(&lookup, -libc::ENOENT, 0);
        requests.answered(&lookup, -libc::ENAMETOOLONG, 0);
        let get = Asked::now(&header(opcode::GETXATTR, 60));
        requests.answered(&get, -libc::ENODATA, 0);
        requests.answered(&Asked::now(&header(4096, 40)), -libc::ENOSYS, 0);
        let read = requests.read();
        let seen = read
            .iter()
            .map(|(name, m)| (*name, m.count(), m.failed, m.bytes));
        let expected = [
            ("LOOKUP", 3, 1, 0),
            ("READ", 1, 0, 100),
            ("WRITE", 2, 1, 4096),
            ("GETXATTR", 1, 0, 0),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
