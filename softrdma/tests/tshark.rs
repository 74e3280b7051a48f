//! What we send, as an independent program reads it: two connections talk to each other in memory, what they send is
//! written to a capture file, and Wireshark's dissectors find every FPDU of it, with the opcode and the CRC that it must
//! have, and nothing malformed (C6, DESIGN D14).

mod common;

use std::fs;
use std::process::Command;

use common::table;
use softrdma::*;

/// Payload of a TCP segment.
const SEGMENT_BYTES: usize = 1448;
/// Neither is a port that a dissector claims.
const PORTS: [u16; 2] = [50_000, 7174];

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
}

impl Tapped {
    /// Lets both sides say what they have to say.
    fn run(&mut self) {
        loop {
            let mut moved = false;
            for from in [0, 1] {
                let mut bytes = Vec::new();
                self.sides[from].poll_transmit(Time(0), &mut NoPages, &mut bytes, 1 << 20);
                if !bytes.is_empty() {
                    moved = true;
                    self.recorder.send(from, &bytes);
                    self.sides[1 - from].handle_bytes(Time(0), &mut NoPages, &bytes);
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

/// Everything that can be said, in both directions, and a Terminate at the end.
fn talk(recorder: Recorder, config: &Config, wrong: bool) -> Recorder {
    let tables = [table(1), table(2)];
    let memory = [Buffer::zeroed(200_000), Buffer::zeroed(200_000)];
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
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
            eprintln!("skipped: tshark: {error}");
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
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
                    recorder = talk(recorder, &config, wrong);
                }
            }
        }
    }
    let directory = std::env::temp_dir().join(format!("flashnet-tshark-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let file = directory.join("ours.pcap");
    fs::write(&file, &recorder.pcap).unwrap();
    let file = file.to_str().unwrap();
    let faults = "_ws.malformed || iwarp_mpa.bad_length || iwarp_mpa.res.not_set0";
    let found = tshark(&["-r", file, "-Y", faults]);
    let opcodes = ["-T", "fields", "-e", "iwarp_rdma.opcode"];
    let opcodes = tshark(&[&["-r", file, "-Y", "iwarp_rdma"], &opcodes[..]].concat());
    let checks = tshark(&["-r", file, "-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa"]);
    fs::remove_dir_all(&directory).unwrap();
    let (Some(found), Some(opcodes), Some(checks)) = (found, opcodes, checks) else {
        return;
    };
    assert_eq!(found, "");
    let mut seen = [0_usize; 16];
    for opcode in opcodes.split(['\n', ',']).filter(|text| !text.is_empty()) {
        let hex = opcode.trim_start_matches("0x");
        seen[usize::from_str_radix(hex, 16).unwrap()] += 1;
    }
    println!("FPDUs by opcode: {seen:?}");
    // One Terminate on each connection, one READ and one Read Response at least of each size and direction.
    assert_eq!(seen[7], 32);
    assert!(seen[..7].iter().all(|&count| count >= 32), "{seen:?}");
    assert!(seen[8..].iter().all(|&count| count == 0), "{seen:?}");
    let (good, all) = (
        checks.matches("(Good CRC32)").count(),
        checks.matches("CRC check:").count(),
    );
    assert!(good == all && good > 1000, "{good} of {all} CRCs are good");
}
