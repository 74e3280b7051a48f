//! What we send, as an independent program reads it: two connections talk to each other in memory, what they send is
//! written to a capture file, and Wireshark's dissectors find every FPDU of it, with the opcode and the CRC that it must
//! have, and nothing malformed (C6, DESIGN D14).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Command;

use crate::common::table;
use softrdma::wire::fpdu::{self, NextFpdu};
use softrdma::*;

/// Payload of a TCP segment.
const SEGMENT_BYTES: usize = 1448;
/// Neither is a port that a dissector claims.
const PORTS: [u16; 2] = [50_000, 7174];

/// Operands of atomic operations.
const ADD: u64 = 0x0ad_0000_0000_0ad0;
const COMPARE: u64 = 0x0c0_0000_0000_0c00;
const SWAP: u64 = 0x05a_0000_0000_05a0;

/// A capture of TCP connections over Ethernet.
struct Recorder {
    pcap: Vec<u8>,
    sequence: [u32; 2],
    packets: u32,
    client_port: u16,
}

impl Recorder {
    fn new() -> Self {
        let mut pcap = Vec::new();
        for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 0xffff, 1] {
            pcap.extend(word.to_le_bytes());
        }
        Self {
            pcap,
            sequence: [0; 2],
            packets: 0,
            client_port: PORTS[0],
        }
    }

    fn connect(&mut self) {
        self.client_port += 1;
        self.sequence = [1000, 2000];
        for (from, flags) in [(0, 0x02), (1, 0x12), (0, 0x10)] {
            self.packet(from, flags, &[]);
            if flags & 0x02 != 0 {
                self.sequence[from] += 1;
            }
        }
    }

    /// Records what a side handed over at once.
    fn send(&mut self, from: usize, bytes: &[u8]) {
        for segment in bytes.chunks(SEGMENT_BYTES) {
            self.packet(from, 0x18, segment);
            self.sequence[from] += segment.len() as u32;
        }
    }

    fn packet(&mut self, from: usize, flags: u8, payload: &[u8]) {
        let to = 1 - from;
        let ports = [self.client_port, PORTS[1]];
        let mut frame = vec![2, 0, 0, 0, 0, to as u8, 2, 0, 0, 0, 0, from as u8, 8, 0];
        frame.extend([0x45, 0]);
        frame.extend((40 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 9, 0, from as u8 + 1, 10, 9, 0, to as u8 + 1]);
        frame.extend(ports[from].to_be_bytes());
        frame.extend(ports[to].to_be_bytes());
        frame.extend(self.sequence[from].to_be_bytes());
        frame.extend(self.sequence[to].to_be_bytes());
        frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend(payload);
        self.packets += 1;
        for word in [0, self.packets, frame.len() as u32, frame.len() as u32] {
            self.pcap.extend(word.to_le_bytes());
        }
        self.pcap.extend(frame);
    }
}

/// Two sides and the recorder between them.
struct Tapped {
    sides: [Connection<NoPages>; 2],
    recorder: Recorder,
    /// With markers, which are asked for in the name of each side: what each has sent in full operation.
    marked: Option<[usize; 2]>,
}

impl Tapped {
    /// Lets both sides say what they have to say.
    fn run(&mut self) {
        loop {
            let mut moved = false;
            for from in [0, 1] {
                let mut bytes = Vec::new();
                self.sides[from].poll_transmit(Time(0), &mut NoPages, &mut bytes, 1 << 20);
                if bytes.is_empty() {
                    continue;
                }
                moved = true;
                let is_start = bytes.starts_with(b"MPA ID");
                let parts = match &mut self.marked {
                    Some(_) if is_start => {
                        bytes[16] |= MARKERS;
                        vec![(bytes.clone(), bytes)]
                    }
                    Some(positions) => without_markers(&bytes, &mut positions[from]),
                    None => vec![(bytes.clone(), bytes)],
                };
                for (sent, received) in parts {
                    self.recorder.send(from, &sent);
                    self.sides[1 - from].handle_bytes(Time(0), &mut NoPages, &received);
                }
            }
            while let Some(event) = self.sides[1].poll_event() {
                if matches!(event, Event::ConnectRequest(_)) {
                    self.sides[1].accept(b"private data of the Reply").unwrap();
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn post(&mut self, from: usize, op: Operation) {
        let request = WorkRequest::new(WrId(1), op);
        self.sides[from].post_send(request).unwrap();
    }
}

/// The flag of a start frame that asks for markers.
const MARKERS: u8 = 0x80;

/// The FPDUs in `bytes`, each as it is and as a side takes it that has not asked for markers.
fn without_markers(bytes: &[u8], position: &mut usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fpdus = Vec::new();
    let (mut marked, mut plain) = (Vec::new(), Vec::new());
    for word in bytes.chunks(4) {
        marked.extend(word);
        if !position.is_multiple_of(512) {
            plain.extend(word);
        }
        *position += word.len();
        if let Ok(NextFpdu::Fpdu(ulpdu, _)) = fpdu::next(&plain, false) {
            let mut sealed = Vec::new();
            let at = fpdu::open(&mut sealed);
            sealed.extend(ulpdu);
            fpdu::seal(&mut sealed, at, true);
            fpdus.push((std::mem::take(&mut marked), sealed));
            plain.clear();
        }
    }
    assert!(marked.is_empty(), "whole FPDUs only");
    fpdus
}

/// Everything that can be said without the private profile, in both directions, and a Terminate at the end.
fn talk(recorder: Recorder, config: &Config, markers: bool, wrong: bool) -> Recorder {
    let tables = [table(1), table(2)];
    let memory = [Buffer::zeroed(200_000), Buffer::zeroed(200_000)];
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
    let regions: Vec<MemoryRegion> = (0..2)
        .map(|side| {
            let spec = RegionSpec::memory(ProtectionDomain(0), rights, &memory[side]);
            tables[side].register(spec).unwrap()
        })
        .collect();
    let initiator = Connection::initiator(config.clone(), &tables[0], b"private data", Time(0));
    let responder = Connection::responder(config.clone(), &tables[1], Time(0));
    let mut tapped = Tapped {
        sides: [initiator.unwrap(), responder],
        recorder,
        marked: markers.then_some([0; 2]),
    };
    tapped.recorder.connect();
    tapped.run();
    for from in [0, 1] {
        let remote = regions[1 - from].remote(3);
        let rights = rights | Rights::REMOTE_INVALIDATE;
        let mut spec = RegionSpec::memory(ProtectionDomain(0), rights, &memory[1 - from]);
        spec.stream = Some(tapped.sides[1 - from].stream());
        // For both forms of SEND.
        let mut passing = [spec.clone(), spec]
            .map(|spec| tables[1 - from].register(spec).unwrap().stag)
            .into_iter();
        for len in [0, 1, 5, 1000, 100_001] {
            let source = || Source::Bytes(vec![0x5a; len]);
            tapped.post(
                from,
                Operation::Write {
                    source: source(),
                    remote,
                },
            );
            let sink = Buffer::zeroed(len);
            let sink = LocalSlice::whole(&sink);
            tapped.post(from, Operation::Read { sink, remote });
            for solicited in [false, true] {
                let buffer = RecvBuffer::Vec(len);
                tapped.sides[1 - from].post_recv(WrId(2), buffer).unwrap();
                let invalidate = passing.next();
                let source = source();
                tapped.post(
                    from,
                    Operation::Send {
                        source,
                        solicited,
                        invalidate,
                    },
                );
            }
            tapped.run();
        }
        let immediate = Immediate(*b"8 bytes.");
        for solicited in [false, true] {
            for _ in 0..2 {
                let buffer = RecvBuffer::Vec(0);
                tapped.sides[1 - from].post_recv(WrId(2), buffer).unwrap();
            }
            let source = Source::Bytes(vec![0x5b; 3000]);
            tapped.post(
                from,
                Operation::WriteImmediate {
                    source,
                    remote,
                    immediate,
                    solicited,
                },
            );
            tapped.post(
                from,
                Operation::Immediate {
                    immediate,
                    solicited,
                },
            );
        }
        let remote = regions[1 - from].remote(64);
        tapped.post(from, Operation::fetch_add(remote, ADD));
        tapped.post(from, Operation::compare_swap(remote, COMPARE, SWAP));
        tapped.run();
        for side in &mut tapped.sides {
            while let Some(done) = side.poll_completion() {
                assert_eq!(done.status, Status::Success);
            }
        }
    }
    let remote = RemoteAddr {
        stag: Stag(0x0bad_0b00),
        to: TaggedOffset(0),
    };
    if wrong {
        let source = Source::Bytes(vec![1; 100]);
        tapped.post(0, Operation::Write { source, remote });
    } else {
        let sink = LocalSlice::whole(&Buffer::zeroed(100));
        tapped.post(0, Operation::Read { sink, remote });
    }
    tapped.run();
    tapped.recorder
}

fn tshark(arguments: &[&str]) -> Option<String> {
    // Protocols that are looked for in our payload, where they are not, and fall over short ones.
    let output = Command::new("tshark")
        .args([
            "--disable-protocol",
            "rpcordma",
            "--disable-protocol",
            "smb_direct",
        ])
        .args(arguments)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let required = std::env::var("FLASHNET_REQUIRE").is_ok_and(|what| what.contains("all"));
            assert!(
                !required,
                "nothing may be skipped here, but tshark: {error}"
            );
            // Not by `eprintln`, of which nobody hears when the test passes.
            let _ = writeln!(std::io::stderr(), "skipped: tshark: {error}");
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What the dissectors found in a capture.
struct Reading {
    /// Packets that they complain about.
    faults: String,
    /// FPDUs by opcode.
    opcodes: [usize; 16],
    /// Kinds and operands of atomic requests, each once.
    atomics: BTreeSet<String>,
    /// CRCs, and those that are as they must be.
    crcs: [usize; 2],
    /// Where markers say that their FPDU began.
    markers: Vec<u16>,
}

const FAULTS: &str = "_ws.malformed || iwarp_mpa.bad_length || iwarp_mpa.res.not_set0";

fn read(recorder: &Recorder, name: &str, faults: &str) -> Option<Reading> {
    let directory = format!("flashnet-tshark-{name}-{}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    fs::create_dir(&directory).unwrap();
    let file = directory.join("ours.pcap");
    fs::write(&file, &recorder.pcap).unwrap();
    let file = file.to_str().unwrap();
    let look = |filter: &str, how: &[&str]| tshark(&[&["-r", file, "-Y", filter], how].concat());
    let reading = || {
        let mut how = vec!["-T", "fields"];
        for field in [
            "iwarp_rdma.opcode",
            "iwarp_mpa.marker_fpduptr",
            "iwarp_rdma.atomic.opcode",
            "iwarp_rdma.atomic.add_data",
            "iwarp_rdma.atomic.swap_data",
            "iwarp_rdma.atomic.compare_data",
        ] {
            how.extend(["-e", field]);
        }
        let mut opcodes = [0; 16];
        let mut markers = Vec::new();
        let mut atomics = BTreeSet::new();
        for line in look("iwarp_rdma", &how)?.lines() {
            let mut fields = line.splitn(3, '\t');
            let mut next = || fields.next().unwrap();
            for opcode in next().split(',') {
                let hex = opcode.trim_start_matches("0x");
                opcodes[usize::from_str_radix(hex, 16).unwrap()] += 1;
            }
            let distances = next().split(',').filter(|text| !text.is_empty());
            markers.extend(distances.map(|text| text.parse::<u16>().unwrap()));
            atomics.insert(next().trim().to_owned());
        }
        let checks = look("iwarp_mpa.fpdu", &["-O", "iwarp_mpa"])?;
        Some(Reading {
            faults: look(faults, &[])?,
            opcodes,
            atomics,
            crcs: ["CRC check:", "(Good CRC32)"].map(|text| checks.matches(text).count()),
            markers,
        })
    };
    let reading = reading();
    fs::remove_dir_all(&directory).unwrap();
    reading
}

#[test]
fn an_independent_dissector_finds_no_fault() {
    let mut recorder = Recorder::new();
    for crc in [false, true] {
        for (revision, peer_to_peer, hello) in [
            (Revision::One, false, false),
            (Revision::Two, false, false),
            (Revision::Two, true, false),
            (Revision::Two, true, true),
        ] {
            for ulpdu_foreign in [config::ULPDU_FLOOR, config::mulpdu(1448, false)] {
                for wrong in [false, true] {
                    let config = Config {
                        crc,
                        revision,
                        peer_to_peer,
                        hello,
                        ulpdu_foreign,
                        ..Config::default()
                    };
                    recorder = talk(recorder, &config, false, wrong);
                }
            }
        }
    }
    let Some(reading) = read(&recorder, "plain", FAULTS) else {
        return;
    };
    assert_eq!(reading.faults, "");
    let seen = reading.opcodes;
    println!("FPDUs by opcode: {seen:?}");
    // One Terminate on each connection, one READ and one Read Response at least of each size and direction.
    assert_eq!(seen[7], 32);
    assert!(seen[..7].iter().all(|&count| count >= 32), "{seen:?}");
    // Immediate data behind a WRITE and alone, two atomic operations and their answers, in each direction.
    assert_eq!(seen[8..], [128, 128, 128, 128, 0, 0, 0, 0]);
    // Both lie in one packet; what a fetch-and-add does not compare is zero.
    let operands = format!("0,2\t{ADD}\t{SWAP}\t0,{COMPARE}");
    assert_eq!(reading.atomics, BTreeSet::from([String::new(), operands]));
    let [all, good] = reading.crcs;
    assert!(good == all && good > 1000, "{good} of {all} CRCs are good");
}

/// Defends our markers: the dissectors find their way through connections whose both sides asked for them. They follow only
/// where each FPDU has a TCP segment of its own, and fits.
#[test]
fn an_independent_dissector_follows_our_markers() {
    let mut recorder = Recorder::new();
    for (revision, wrong) in [(Revision::One, false), (Revision::Two, true)] {
        let config = Config {
            revision,
            hello: false,
            ulpdu_foreign: config::ULPDU_FLOOR,
            ..Config::default()
        };
        recorder = talk(recorder, &config, true, wrong);
    }
    // Nor may there be bytes in which it finds no FPDU.
    let faults = format!("{FAULTS} || (tcp.len > 0 && !iwarp_mpa)");
    let Some(reading) = read(&recorder, "markers", &faults) else {
        return;
    };
    assert_eq!(reading.faults, "");
    assert_eq!(reading.opcodes[7..], [2, 8, 8, 8, 8, 0, 0, 0, 0]);
    let [all, good] = reading.crcs;
    assert!(good == all && good > 1000, "{good} of {all} CRCs are good");
    assert!(reading.markers.len() > 1000, "{}", reading.markers.len());
    let distances: BTreeSet<u16> = reading.markers.into_iter().collect();
    assert!(distances.into_iter().eq((0..=132).step_by(4)));
}
