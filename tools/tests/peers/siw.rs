//! The Linux kernel as the peer: its soft-iWARP (`siw`) in a guest, with the programs that people try RDMA with, and one of
//! our own in C. `softrdma/interop/README.md` says what the guest is and how to build it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{self, FLASHNET, Image, can_serve, skip};
use tools::client::{Session, SessionOptions};
use tools::control::{FLAG_PERSISTENT, Op, Request};
use tools::credentials::token::{ONCE_SECONDS_MAX, to_text};
use tools::credentials::{Claims, Denial, Key, SessionBlock, unix_now};
use tools::siw::{self, Guest, GuestOptions, HOST_IN_GUEST, Ran};

/// Longest wait for anything in the guest, without KVM and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// As in `flash-client.c`.
const FILE_BYTES: usize = 1 << 20;
const BLOCK: usize = 4096;

/// A guest, or none when the test has been skipped.
fn guest(ports: &[u16]) -> Option<Guest> {
    let options = GuestOptions {
        ports: ports.to_vec(),
        pcap: None,
    };
    match Guest::start(&siw::rig(), &options) {
        Err(siw::GuestError::Missing(why)) => {
            skip(&format!(
                "no guest: {why} (softrdma/interop/siw-guest build)"
            ));
            None
        }
        started => Some(started.unwrap()),
    }
}

/// As in `flash-client.c`.
fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251 + 1) as u8
}

/// Every program × role × CRC × revision × ready-to-receive frame × frame size works, or is refused as it has to be; what
/// went over the wire decodes in an independent program, without one malformed frame.
#[test]
fn matrix() {
    let Err(siw::GuestError::Missing(why)) = siw::available(&siw::rig()) else {
        return run_matrix();
    };
    skip(&format!(
        "no guest: {why} (softrdma/interop/siw-guest build)"
    ));
}

fn run_matrix() {
    let scratch = tempfile::tempdir().unwrap();
    let pcap = scratch.path().join("matrix.pcap");
    let output = Command::new(FLASHNET)
        .args(["peer", "matrix", "--pcap"])
        .arg(&pcap)
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    println!("{table}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}\n{errors}");
    assert!(table.contains("224 of 224 good"), "{table}");

    // Another guest, should one have been needed, has another file.
    let captures = fs::read_dir(scratch.path()).unwrap();
    let captures: Vec<_> = captures.map(|entry| entry.unwrap().path()).collect();
    let mut seen = Seen::default();
    for capture in &captures {
        match dissect(capture.to_str().unwrap(), scratch.path()) {
            Some(more) => seen.add(&more),
            None => return,
        }
    }
    assert_eq!(seen.checks, seen.good);
    assert!(seen.good > 5_000, "{seen:?}");
    assert!(seen.frames > 10_000, "{seen:?}");
}

/// What a dissector has seen in a capture.
#[derive(Debug, Default)]
struct Seen {
    frames: usize,
    /// CRCs, and those that are right.
    checks: usize,
    good: usize,
}

impl Seen {
    fn add(&mut self, more: &Self) {
        self.frames += more.frames;
        self.checks += more.checks;
        self.good += more.good;
    }
}

/// Looks for frames that do not decode, of which there must be none, and counts the others; none when the test has been
/// skipped.
fn dissect(pcap: &str, scratch: &Path) -> Option<Seen> {
    let faults = "_ws.malformed || iwarp_mpa.bad_length || iwarp_mpa.res.not_set0";
    let streams = tshark(&["-r", pcap, "-Y", faults, "-T", "fields", "-e", "tcp.stream"])?;
    // Port numbers come again within a capture, and a dissector may take what it knows of the first connection for the
    // second: each has to decode by itself.
    let streams: BTreeSet<&str> = streams.lines().collect();
    for stream in streams {
        let alone = scratch.join(format!("{stream}.alone"));
        let (alone, filter) = (alone.to_str().unwrap(), format!("tcp.stream == {stream}"));
        tshark(&["-r", pcap, "-Y", &filter, "-w", alone])?;
        let found = tshark(&["-r", alone, "-Y", faults])?;
        assert_eq!(found.lines().take(10).collect::<Vec<_>>(), [""; 0]);
    }
    let checks = tshark(&["-r", pcap, "-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa"])?;
    let count = |what| checks.matches(what).count();
    Some(Seen {
        frames: count("ULPDU length:"),
        checks: count("CRC check:"),
        good: count("(Good CRC32)"),
    })
}

/// What Wireshark's dissectors print, or none when the test has been skipped.
fn tshark(arguments: &[&str]) -> Option<String> {
    // MPA is found by its set-up. Before that counts, a port that chance gave to a connection stands for another protocol.
    // And protocols that are looked for in the payload, where they are not, fall over short ones.
    let output = Command::new("tshark")
        .args([
            "-o",
            "tcp.try_heuristic_first:TRUE",
            "--disable-protocol",
            "rpcordma",
            "--disable-protocol",
            "smb_direct",
        ])
        .args(arguments)
        .output();
    let Ok(output) = output else {
        skip("tshark is not installed");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Plain rdma_cm and verbs against a target: resolve a path, WRITE and READ the file by one-sided operations, sync by the
/// sync STag and a READ of no bytes, and survive a wrong STag. The bytes are in the volume afterwards (DESIGN §3, I10).
#[test]
fn a_verbs_program_uses_a_target() {
    if !can_serve() {
        return;
    }
    let Some(guest) = guest(&[]) else { return };
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let command = format!(
        "flash-client {HOST_IN_GUEST} {} /file work",
        target.address.port()
    );
    let ran = guest.run(&command, PATIENCE).unwrap();
    assert_eq!(ran.status, 0, "{}", ran.output);
    for line in ["written", "durable", "done"] {
        assert!(
            ran.output.lines().any(|said| said == line),
            "{}",
            ran.output
        );
    }
    assert_eq!(
        ran.output.matches("wrong STag: ").count(),
        2,
        "{}",
        ran.output
    );

    let copy = image.beside("copy");
    common::good(&["get", &target.url("/file"), copy.to_str().unwrap()]);
    let found = fs::read(&copy).unwrap();
    let turned = FILE_BYTES - BLOCK;
    let expected = |at| {
        if at < turned {
            pattern(at)
        } else {
            !pattern(at)
        }
    };
    assert_eq!(found.len(), FILE_BYTES);
    assert!((0..FILE_BYTES).all(|at| found[at] == expected(at)));
    assert!(target.stop().success());
}

/// I1: what the kernel's program was told to be durable is there after SIGKILL of the target right behind the
/// acknowledgement.
#[test]
fn acknowledged_sync_writes_survive_a_kill() {
    const WRITES: usize = 8;
    if !can_serve() {
        return;
    }
    let Some(guest) = guest(&[]) else { return };
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let port = target.address.port();
    let command = format!("flash-client {HOST_IN_GUEST} {port} /file sync {WRITES}");
    let running = guest.spawn(&command).unwrap();
    let last = format!("durable {}", WRITES - 1);
    running.wait_for_line(&last, PATIENCE).unwrap();
    target.kill();
    drop(guest);

    let target = image.serve(&[]);
    let copy = image.beside("copy");
    common::good(&["get", &target.url("/file"), copy.to_str().unwrap()]);
    let found = fs::read(&copy).unwrap();
    assert!((0..WRITES * BLOCK).all(|at| found[at] == pattern(at)));
    assert!(target.stop().success());
}

/// The key of this tenant; its secret is its name, many times over.
fn key(tenant: &str) -> Key {
    Key::derive(tenant.repeat(8).as_bytes()).unwrap()
}

/// A tenant in the configuration file of a target.
fn configured(image: &Image, tenant: &str, more: &str) -> String {
    let file = image.beside(&format!("{tenant}.key"));
    fs::write(&file, tenant.repeat(8)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    format!("[[tenant]]\nname = \"{tenant}\"\nkey_file = {file:?}\n{more}\n")
}

fn claims(tenant: &str, epoch: u64, lifetime_seconds: i64) -> Claims {
    Claims {
        tenant: tenant.parse().unwrap(),
        epoch,
        expires: unix_now().saturating_add_signed(lifetime_seconds),
        once: false,
        nonce: rand::random(),
    }
}

/// `flash-client` in a guest, towards one port of this host.
struct Verbs<'a>(&'a Guest, u16);

impl Verbs<'_> {
    /// Connects with this private data, and uses a path or a region.
    fn run(&self, private_data: &[u8], what: &str) -> Ran {
        let (data, port) = (to_text(private_data), self.1);
        let command = format!("echo {data} > t; flash-client -t t {HOST_IN_GUEST} {port} {what}");
        loop {
            let ran = self.0.run(&command, PATIENCE).unwrap();
            // The connection manager draws a port, and may draw one that has just been used towards the same target.
            if ran.output != "rdma_connect: Cannot assign requested address" {
                return ran;
            }
        }
    }

    fn good(&self, private_data: &[u8], what: &str) {
        let ran = self.run(private_data, what);
        assert_eq!(ran.status, 0, "{what}: {}", ran.output);
        assert!(ran.output.ends_with("done"), "{what}: {}", ran.output);
    }

    /// It is let in, and then fails with these words.
    fn bad(&self, private_data: &[u8], what: &str, words: &str) {
        let ran = self.run(private_data, what);
        assert_eq!(ran.status, 1, "{what}: {}", ran.output);
        assert!(ran.output.starts_with(words), "{what}: {}", ran.output);
    }

    /// It is not let in.
    fn denied(&self, private_data: &[u8], denial: Denial) {
        let ran = self.run(private_data, "/a read");
        let said = format!("RDMA_CM_EVENT_REJECTED: FNE1, code {}", denial.code());
        assert_eq!((ran.output, ran.status), (said, 3), "{denial}");
    }

    /// Connections that follow are asked for with this revision of MPA.
    fn speak(&self, revision: u8) {
        let set = format!("echo {revision} > /sys/module/siw/parameters/mpa_version");
        assert_eq!(self.0.run(&set, PATIENCE).unwrap().status, 0);
    }
}

/// The private data of the kernel's connection manager are a token: a verbs program that presents one reaches what its tenant
/// may reach and no more, and is told by a code in the event why another is refused, in both revisions of MPA (RELIABILITY §8,
/// I10).
#[test]
fn a_verbs_program_presents_a_token() {
    const HOUR: i64 = 3600;
    if !can_serve() {
        return;
    }
    let Some(guest) = guest(&[]) else { return };
    let image = Image::new("64MiB");
    let config = image.beside("target.toml");
    let tenants = configured(&image, "alpha", "epoch = 2\nexports = [\"/a\"]")
        + &configured(&image, "beta", "exports = [\"/b\", \"/a:ro\"]");
    fs::write(&config, tenants).unwrap();
    let options = ["--config", config.to_str().unwrap()];
    let target = image.serve(&options);
    let verbs = Verbs(&guest, target.address.port());
    let alpha = key("alpha").sign(&claims("alpha", 2, HOUR));
    let beta = key("beta").sign(&claims("beta", 0, HOUR));

    verbs.good(&alpha, "/a work");
    verbs.good(&beta, "/a read");
    let refused = |errno| format!("refused: status {errno},");
    verbs.bad(&beta, "/a work", &refused(libc::EROFS));
    verbs.bad(&alpha, "/b work", &refused(libc::EACCES));

    // What is known of a region is of use to its own tenant only, before a restart and after it.
    let at = [target.address];
    let mut session = Session::connect_as(&at, SessionOptions::default(), &alpha).unwrap();
    let open = Request {
        flags: FLAG_PERSISTENT,
        ..Request::new(Op::Open, "/a")
    };
    let file = session.open(open).unwrap();
    session.close();
    let known = format!("{:x}:{:x} read", file.stag.0, file.to);
    verbs.good(&alpha, &known);
    verbs.bad(&beta, &known, "READ: ");
    assert!(target.stop().success());
    let target = image.serve(&options);
    let verbs = Verbs(&guest, target.address.port());
    verbs.bad(&beta, &known, "READ: ");
    verbs.good(&alpha, &known);

    let numbered = |connection| {
        let id = [5; 16];
        [&alpha[..], &SessionBlock { id, connection }.emit()].concat()
    };
    let once = |lifetime| {
        let claims = claims("alpha", 2, lifetime);
        key("alpha").sign(&Claims {
            once: true,
            ..claims
        })
    };
    let used = once(ONCE_SECONDS_MAX as i64 - 10);
    verbs.good(&numbered(3), "/a read");
    verbs.good(&used, "/a read");
    let refusals = [
        (Vec::new(), Denial::NoToken),
        (vec![7; 200], Denial::NoToken),
        (alpha[..50].to_vec(), Denial::Malformed),
        (key("beta").sign(&claims("alpha", 2, HOUR)), Denial::Refused),
        (
            key("gamma").sign(&claims("gamma", 2, HOUR)),
            Denial::Refused,
        ),
        (key("alpha").sign(&claims("alpha", 1, HOUR)), Denial::Epoch),
        (key("alpha").sign(&claims("alpha", 2, -1)), Denial::Expired),
        (used, Denial::Used),
        (once(HOUR), Denial::TooLong),
        (numbered(2), Denial::Superseded),
    ];
    for revision in [2, 1] {
        verbs.speak(revision);
        for (private_data, denial) in &refusals {
            verbs.denied(private_data, *denial);
        }
        verbs.good(&alpha, "/a read");
    }
    assert!(target.stop().success());
}

/// A kernel that comes to the port for TLS is told so (`tools/docs/tls.md`).
#[test]
fn a_verbs_program_hears_that_a_port_wants_tls() {
    if !can_serve() {
        return;
    }
    let Some(guest) = guest(&[]) else { return };
    let image = Image::new("64MiB");
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [certificate, secret, ready] = ["crt", "key", "ready"].map(|name| image.beside(name));
    fs::write(&certificate, own.cert.pem()).unwrap();
    fs::write(&secret, own.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let [certificate, secret, ready] = [&certificate, &secret, &ready].map(|p| p.to_str().unwrap());
    let files = ["--tls-cert", certificate, "--tls-key", secret];
    let listen = ["--tls-listen", "127.0.0.1:0", "--ready-file", ready];
    let target = image.serve(&[&files[..], &listen].concat());
    let ready = fs::read_to_string(ready).unwrap();
    let address: SocketAddr = ready.lines().nth(1).unwrap().parse().unwrap();
    let verbs = Verbs(&guest, address.port());
    for revision in [2, 1] {
        verbs.speak(revision);
        verbs.denied(&[], Denial::NeedsTls);
        verbs.denied(&[7; 200], Denial::NeedsTls);
    }
    assert!(target.stop().success());
}

/// The driver loses a first FPDU that comes at once, about one in eight here. Our initiator gets over it: of many
/// connections, one after the other and with each kind of first FPDU, every single one does its work.
#[test]
fn no_connection_is_lost_to_a_lost_first_fpdu() {
    const PORT: u16 = 7174;
    const EACH: u32 = 34;
    let Some(guest) = guest(&[PORT]) else { return };
    let server = guest.spawn(&format!("rping -s -P -p {PORT}")).unwrap();
    let address = guest.address(PORT).unwrap().to_string();
    for rtr in ["none", "write", "read"] {
        let printed = common::good(&[
            "peer",
            "rping",
            "--connect",
            &address,
            "--rtr",
            rtr,
            "--connections",
            &EACH.to_string(),
            "--count",
            "1",
            "--size",
            "64",
        ]);
        assert!(
            printed.contains(&format!("{EACH} connections")),
            "{printed}"
        );
    }
    drop(server);
}

/// Each program plays both sides, over each kind of first FPDU: without a kernel, as a try of a network between two of ours.
#[test]
fn programs_play_each_other() {
    let programs = [
        &["rping"][..],
        &["cmatose"],
        &["rdma"],
        &["write-bw"],
        &["read-bw"],
        &["send-bw"],
        &["perftest", "--test", "write"],
        &["perftest", "--test", "read"],
        &["perftest", "--test", "send"],
        &["rstream"],
    ];
    for (program, rtr) in programs
        .into_iter()
        .zip(["none", "write", "read", "any"].into_iter().cycle())
    {
        let command = |more: &[&str]| {
            let mut command = Command::new(FLASHNET);
            command.args(["--json", "peer"]).args(program).args(more);
            command.args(["--count", "10"]).stdout(Stdio::piped());
            command
        };
        let mut server = command(&["--listen", "127.0.0.1:0"]).spawn().unwrap();
        let mut told = BufReader::new(server.stdout.take().unwrap()).lines();
        let line: serde_json::Value = serde_json::from_str(&told.next().unwrap().unwrap()).unwrap();
        let address = line["address"].as_str().unwrap();
        let client = command(&["--connect", address, "--rtr", rtr])
            .output()
            .unwrap();
        assert!(client.status.success(), "{program:?}: {client:?}");
        assert!(server.wait().unwrap().success(), "{program:?}");
        let done: serde_json::Value = serde_json::from_str(&told.next().unwrap().unwrap()).unwrap();
        assert!(done["connections"].as_u64() > Some(0), "{program:?}");
    }
}
