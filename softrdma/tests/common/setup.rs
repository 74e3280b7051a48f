//! Both sides of set-up, as its tests begin with them.

use softrdma::wire::start::{Enhanced, StartFrame, StartKind};
use softrdma::{Config, Connection, NoPages, Operation, Source, Time, WorkRequest, WrId};

use super::{Residency, TestPages, table};

/// Pages that are always there.
pub fn pages() -> TestPages {
    TestPages::new(Residency::Always, 1)
}

/// A SEND of `message`.
pub fn send(id: u64, message: &[u8]) -> WorkRequest {
    let op = Operation::Send {
        source: Source::Bytes(message.to_vec()),
        solicited: false,
        invalidate: None,
    };
    WorkRequest::new(WrId(id), op)
}

/// An initiator, and the Request that it has sent.
pub fn initiator(config: Config) -> (Connection<NoPages>, Vec<u8>) {
    let mut connection = Connection::initiator(config, &table(1), b"", Time(0)).unwrap();
    let mut request = Vec::new();
    connection.poll_transmit(Time(0), &mut NoPages, &mut request, usize::MAX);
    (connection, request)
}

/// A Reply without private data.
pub fn reply(crc: bool, markers: bool, revision: u8, enhanced: Option<Enhanced>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kind = StartKind::Reply;
    StartFrame {
        kind,
        markers,
        crc,
        rejected: false,
        revision,
        enhanced,
        private_data: b"",
    }
    .emit(&mut bytes);
    bytes
}
