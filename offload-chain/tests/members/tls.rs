//! TLS between members, and between clients and members: what it keeps from whom, who is let in, and that it holds nobody up. Members and
//! clients of this process, real TCP, and before each member a wire that listens.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::authority::{Authority, Issued};
use crate::hosted::{Group, LONG, birth, entry, timing, wait_for};
use offload_chain::client::{Client, ClientError, ClientSettings};
use offload_chain::group::Topology;
use offload_chain::host::{Host, HostSettings};
use offload_chain::lock::LockId;
use offload_chain::membership::Birth;
use offload_chain::tls::{ClientFiles, GroupTls, MemberFiles, MemberTls, TlsError};

/// What no eavesdropper shall find.
const MARKER: &[u8] = b"the marker that nobody on the way may read";

/// Everything that others say to a member, and it to them.
struct Wire {
    address: SocketAddr,
    member: Arc<OnceLock<SocketAddr>>,
    record: Arc<Mutex<Vec<u8>>>,
}

impl Wire {
    /// To a member that is not there yet.
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (member, record) = (Arc::<OnceLock<SocketAddr>>::default(), Arc::default());
        let wire = Self {
            address,
            member: Arc::clone(&member),
            record: Arc::clone(&record),
        };
        thread::spawn(move || {
            for near in listener.incoming() {
                let far = member.get().and_then(|at| TcpStream::connect(at).ok());
                let (Ok(near), Some(far)) = (near, far) else {
                    continue;
                };
                let copy = |stream: &TcpStream| stream.try_clone().unwrap();
                let ways = [(copy(&near), copy(&far)), (far, near)];
                for (from, to) in ways {
                    let record = Arc::clone(&record);
                    thread::spawn(move || pass(from, to, &record));
                }
            }
        });
        wire
    }

    fn carried(&self, bytes: &[u8]) -> bool {
        let record = self.record.lock().unwrap();
        record.windows(bytes.len()).any(|window| window == bytes)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, record: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let bytes = &bytes[..count];
        record.lock().unwrap().extend_from_slice(bytes);
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A group whose members have certificates.
struct Sealed {
    group: Group,
    authority: Authority,
    member: Issued,
    client_ca: Option<PathBuf>,
}

impl Sealed {
    fn new(members: u32, birth: Birth) -> Self {
        let group = Group::born(members, birth);
        let authority = Authority::new(group.path(), "authority");
        let member = authority.issue("member", &["127.0.0.1", "localhost"]);
        Self {
            group,
            authority,
            member,
            client_ca: None,
        }
    }

    fn member_tls(&self) -> MemberTls {
        MemberTls::new(&MemberFiles {
            certificate: self.member.certificate.clone(),
            key: self.member.key.clone(),
            ca: self.authority.path().to_owned(),
            client_ca: self.client_ca.clone(),
            name: None,
        })
        .unwrap()
    }

    fn serve(&self, member: u32, wire: Option<&Wire>) -> Host {
        serve(&self.group, member, Some(self.member_tls()), wire)
    }

    fn files(&self) -> ClientFiles {
        ClientFiles {
            ca: Some(self.authority.path().to_owned()),
            ..ClientFiles::default()
        }
    }

    fn client(&self) -> Client {
        connect(&self.group, Some(&self.files())).unwrap()
    }
}

fn serve(group: &Group, member: u32, tls: Option<MemberTls>, wire: Option<&Wire>) -> Host {
    let settings = HostSettings {
        advertise: wire.map(|wire| wire.address.to_string()),
        tls,
        ..group.settings(member)
    };
    let host = Host::start(settings, Box::new(group.store())).unwrap();
    if let Some(wire) = wire {
        let _ = wire.member.set(host.address());
    }
    host
}

fn connect(group: &Group, files: Option<&ClientFiles>) -> Result<Client, ClientError> {
    let settings = ClientSettings {
        timing: timing(),
        timeout: LONG,
        tls: files.map(|files| GroupTls::new(files).unwrap()),
        ..ClientSettings::default()
    };
    Client::connect(Box::new(group.store()), settings)
}

fn append(client: &mut Client, offset: u64) {
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(offset, MARKER)).unwrap();
    client.unlock(LockId::LOG).unwrap();
}

fn chain(hosts: &[Host]) {
    wait_for("all are in the chain", || {
        let mut states = hosts.iter().map(Host::state);
        let in_chain = |state: offload_chain::host::HostState| {
            state.position.is_some() && state.chain == hosts.len()
        };
        states.all(in_chain)
    });
}

/// Writes, reads, changes of epochs, and the copy of a whole memory to a member that has lost its own: nobody on the way reads a byte of what is
/// said, while everybody does without TLS (RELIABILITY §2: on-path attacker; I12-I15 hold as without).
#[test]
fn nobody_on_the_way_reads() {
    for (by_tls, topology) in [
        (true, Topology::Chain),
        (true, Topology::Star),
        (false, Topology::Chain),
    ] {
        let sealed = Sealed::new(
            3,
            Birth {
                topology,
                ..birth()
            },
        );
        let group = &sealed.group;
        let (tls, files) = match by_tls {
            true => (Some(sealed.member_tls()), Some(sealed.files())),
            false => (None, None),
        };
        let wires = [1, 2, 3].map(|_| Wire::new());
        let serve = |member: u32, wire: &Wire| serve(group, member, tls.clone(), Some(wire));
        let mut hosts = Vec::from_iter((1..).zip(&wires).map(|(id, wire)| serve(id, wire)));
        let mut client = connect(group, files.as_ref()).unwrap();
        append(&mut client, 0);
        let at = client.layout().data_at();
        for member in 0..3 {
            let found = client.read_memory(member, at, MARKER.len());
            assert_eq!(found.unwrap(), MARKER);
        }
        // One dies, and its memory with it; the others go on.
        hosts[1].stop();
        append(&mut client, 1024);
        fs::remove_file(group.path().join("2")).unwrap();
        let again = Wire::new();
        hosts[1] = serve(2, &again);
        chain(&hosts);
        append(&mut client, 2048);
        let found = client.read_memory(2, at + 1024, MARKER.len()).unwrap();
        assert_eq!(found, MARKER, "it was copied to");
        client.leave();
        for wire in wires.iter().chain([&again]) {
            let said = wire.record.lock().unwrap().len();
            assert!(said > 512, "{said} bytes");
            assert_eq!(wire.carried(MARKER), !by_tls);
            assert_eq!(wire.carried(b"FLASHNET-MEMBER"), !by_tls);
            assert_eq!(wire.carried(b"MPA ID Re"), !by_tls);
        }
    }
}

/// Who is not whom the members want to see is not let in, nor let in to by who is not whom it wants; each hears what is wrong, at once.
#[test]
fn strangers_are_told() {
    let mut sealed = Sealed::new(1, birth());
    let dir = sealed.group.path().to_owned();
    let (other, clients) = (
        Authority::new(&dir, "other"),
        Authority::new(&dir, "clients"),
    );
    let cause = |sealed: &Sealed, files: ClientFiles| match connect(&sealed.group, Some(&files)) {
        Err(ClientError::Tls { cause, address }) => {
            // It leaves nothing that would be missed: who is would end the epoch of the others.
            let slots = offload_chain::config::list(&mut sealed.group.store(), "slot/").unwrap();
            assert!(slots.is_empty(), "{slots:?}");
            (cause, address.is_some())
        }
        other => panic!("{:?}", other.err()),
    };
    let own = |issued: &Issued| Some((issued.certificate.clone(), issued.key.clone()));

    let host = sealed.serve(1, None);
    sealed.client().leave();
    let foreign = ClientFiles {
        ca: Some(other.path().to_owned()),
        ..sealed.files()
    };
    assert_eq!(cause(&sealed, foreign), (TlsError::UnknownIssuer, true));
    let elsewhere = ClientFiles {
        name: Some("elsewhere".to_owned()),
        ..sealed.files()
    };
    let (found, _) = cause(&sealed, elsewhere);
    assert!(matches!(found, TlsError::WrongName { .. }), "{found}");
    let here = ClientFiles {
        name: Some("localhost".to_owned()),
        ..sealed.files()
    };
    connect(&sealed.group, Some(&here)).unwrap().leave();
    let plainly = connect(&sealed.group, None).unwrap_err();
    assert!(matches!(plainly, ClientError::NeedsTls), "{plainly}");
    drop(host);

    // Certificates of clients; those of members are as good.
    sealed.client_ca = Some(clients.path().to_owned());
    let host = sealed.serve(1, None);
    assert_eq!(
        cause(&sealed, sealed.files()).0,
        TlsError::CertificateWanted
    );
    for issued in [&clients.issue("client", &["someone"]), &sealed.member] {
        let files = ClientFiles {
            own: own(issued),
            ..sealed.files()
        };
        connect(&sealed.group, Some(&files)).unwrap().leave();
    }
    let files = ClientFiles {
        own: own(&other.issue("foreign", &["someone"])),
        ..sealed.files()
    };
    let (found, _) = cause(&sealed, files);
    assert!(matches!(found, TlsError::CertificateRefused(_)), "{found}");
    drop(host);

    // Members without TLS.
    let host = sealed.group.serve(1);
    assert_eq!(cause(&sealed, sealed.files()), (TlsError::NotTls, true));
    drop(host);
}

/// Members with certificates of clients' CAs asked for let each other in, each by its own certificate.
#[test]
fn members_show_certificates() {
    let mut sealed = Sealed::new(3, birth());
    let clients = Authority::new(sealed.group.path(), "clients");
    sealed.client_ca = Some(clients.path().to_owned());
    let hosts: Vec<Host> = (1..=3).map(|member| sealed.serve(member, None)).collect();
    chain(&hosts);
    let client = clients.issue("client", &["someone"]);
    let files = ClientFiles {
        own: Some((client.certificate, client.key)),
        ..sealed.files()
    };
    let mut client = connect(&sealed.group, Some(&files)).unwrap();
    append(&mut client, 0);
    client.leave();
}

/// The first thing that a client says by TLS.
fn client_hello(sealed: &Sealed) -> Vec<u8> {
    let files = sealed.files();
    let tls = flashnet_tls::ClientTls::speaking(flashnet_tls::GROUP_PROTOCOL, &files).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let calls = thread::spawn(move || {
        let stream = TcpStream::connect(at).unwrap();
        let _ = tls.connect(&stream, at, LONG);
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut body).unwrap();
    drop(stream);
    calls.join().unwrap();
    [&head[..], &body].concat()
}

/// I16: handshakes that stop anywhere, more than a member has places for, keep out no client, and no member misses another for them.
#[test]
fn half_open_handshakes_keep_nobody_out() {
    const MANY: usize = 600;
    let sealed = Sealed::new(2, birth());
    let hosts: Vec<Host> = (1..=2).map(|member| sealed.serve(member, None)).collect();
    chain(&hosts);
    let mut there = sealed.client();
    append(&mut there, 0);
    let epoch = there.configuration().epoch;
    let hello = client_hello(&sealed);
    let mut crowd = Vec::new();
    for n in 0..MANY {
        let mut stream = TcpStream::connect(hosts[n % 2].address()).unwrap();
        let said = match n % 3 {
            0 => 0,
            1 => n % hello.len(),
            _ => hello.len(),
        };
        stream.write_all(&hello[..said]).unwrap();
        crowd.push(stream);
        if n % 100 == 99 {
            let mut comes = sealed.client();
            comes.lock(LockId(1), LONG).unwrap();
            comes.unlock(LockId(1)).unwrap();
            comes.leave();
            append(&mut there, 512);
        }
    }
    // Who waits longest was sent away, and no place is taken for ever.
    let first = &mut crowd[0];
    first.set_read_timeout(Some(LONG)).unwrap();
    let end = first.read(&mut [0; 64]).map_err(|error| error.kind());
    assert!(
        matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)),
        "{end:?}"
    );
    // Nonsense inside of a record is told.
    let mut stream = TcpStream::connect(hosts[0].address()).unwrap();
    stream
        .write_all(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff")
        .unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut alert = [0; 3];
    stream.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3, 3]);
    thread::sleep(timing().period * (timing().misses + 2));
    append(&mut there, 1024);
    assert_eq!(there.configuration().epoch, epoch, "a member was missed");
    there.leave();
}
