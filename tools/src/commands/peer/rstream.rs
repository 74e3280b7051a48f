//! `rstream -T v`: bytes over a stream, there and back, every one of them checked.

use anyhow::{Result, ensure};

use super::program::{Place, Task};
use super::rsocket::RSocket;

/// Bytes that both sides send before they measure.
const SYNC: usize = 16;

pub(super) fn run(task: &Task<'_>, place: &Place<'_>) -> Result<()> {
    let mut stream = Stream {
        socket: RSocket::open(task, place)?,
        sent: 0,
        received: 0,
    };
    let is_client = matches!(place, Place::Connect(_));
    for (count, size) in [(1, SYNC), (task.count, task.size)] {
        for sends in [is_client, !is_client] {
            for _ in 0..count {
                if sends {
                    stream.send(size)?;
                } else {
                    stream.recv(size)?;
                }
            }
        }
    }
    stream.socket.close()
}

/// Each direction counts its bytes from 0, modulo 256.
struct Stream {
    socket: RSocket,
    sent: u8,
    received: u8,
}

impl Stream {
    fn send(&mut self, size: usize) -> Result<()> {
        let bytes = counting(&mut self.sent, size);
        self.socket.send(&bytes)
    }

    fn recv(&mut self, size: usize) -> Result<()> {
        let bytes = self.socket.recv(size)?;
        ensure!(
            bytes == counting(&mut self.received, size),
            "other bytes than those sent"
        );
        Ok(())
    }
}

fn counting(next: &mut u8, size: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..size).map(|at| next.wrapping_add(at as u8)).collect();
    *next = next.wrapping_add(size as u8);
    bytes
}
