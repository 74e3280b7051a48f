//! TCP streams out of a capture file.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Half {
    /// Sequence number of the first byte.
    first: Option<u32>,
    /// Segments by offset in the stream.
    segments: BTreeMap<u32, Vec<u8>>,
}

impl Half {
    fn take(&mut self, seq: u32, syn: bool, payload: &[u8]) {
        if syn {
            self.first = Some(seq.wrapping_add(1));
            return;
        }
        let first = *self.first.get_or_insert(seq);
        let offset = seq.wrapping_sub(first);
        // Keep-alives and the like lie before the first byte.
        if payload.is_empty() || offset >= 1 << 31 {
            return;
        }
        let kept = self.segments.entry(offset).or_default();
        if payload.len() > kept.len() {
            *kept = payload.to_vec();
        }
    }

    /// The bytes in order, retransmissions dropped, up to the first gap.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (&offset, segment) in &self.segments {
            let offset = offset as usize;
            if offset > bytes.len() {
                break;
            }
            let known = bytes.len() - offset;
            bytes.extend_from_slice(segment.get(known..).unwrap_or_default());
        }
        bytes
    }
}

/// Both directions of a connection.
#[derive(Debug)]
pub struct Streams {
    /// Sent by the side that connected.
    pub client: Vec<u8>,
    /// Sent by the other.
    pub server: Vec<u8>,
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn le32(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

type Address = ([u8; 4], u16);

/// All connections of a little-endian Ethernet capture over IPv4, in the order of their SYNs.
pub fn connections(pcap: &[u8]) -> Vec<Streams> {
    assert_eq!(
        pcap[..4],
        [0xd4, 0xc3, 0xb2, 0xa1],
        "little-endian microsecond capture"
    );
    let mut connections: Vec<(Address, Address, Half, Half)> = Vec::new();
    let mut rest = &pcap[24..];
    while rest.len() >= 16 {
        let length = le32(&rest[8..]);
        let frame = &rest[16..16 + length];
        rest = &rest[16 + length..];
        if be16(&frame[12..]) != 0x0800 || frame[23] != 6 {
            continue;
        }
        let ip = &frame[14..14 + usize::from(be16(&frame[16..]))];
        let tcp = &ip[usize::from(ip[0] & 15) * 4..];
        let source = ([ip[12], ip[13], ip[14], ip[15]], be16(tcp));
        let target = ([ip[16], ip[17], ip[18], ip[19]], be16(&tcp[2..]));
        let seq = be32(&tcp[4..]);
        let (syn, ack) = (tcp[13] & 2 != 0, tcp[13] & 16 != 0);
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if syn && !ack {
            connections.push((source, target, Half::default(), Half::default()));
        }
        // Ports are reused: the latest connection counts.
        for (client, server, from_client, from_server) in connections.iter_mut().rev() {
            if (*client, *server) == (source, target) {
                from_client.take(seq, syn, payload);
                break;
            }
            if (*client, *server) == (target, source) {
                from_server.take(seq, syn, payload);
                break;
            }
        }
    }
    let streams = |(_, _, client, server): (Address, Address, Half, Half)| Streams {
        client: client.bytes(),
        server: server.bytes(),
    };
    connections.into_iter().map(streams).collect()
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// A capture and its reading.
pub fn load(name: &str) -> (Vec<Streams>, String) {
    let pcap = std::fs::read(directory().join(format!("{name}.pcap"))).unwrap();
    let reading = std::fs::read_to_string(directory().join(format!("{name}.txt"))).unwrap();
    (connections(&pcap), reading)
}

/// Names of all captures.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .filter_map(|entry| {
            entry
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .strip_suffix(".pcap")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}
