//! TLS between our own client and the target: what it keeps from whom, who is let in, and what happens to connections. Real
//! processes, real TCP, and between them a wire that listens, cuts and changes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::client::wait;
use crate::common::{self, FLASHNET, Image, Target, bad, can_serve, good, pattern, wrong};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use softrdma::CloseReason;
use softrdma::wire::start::{StartFrame, StartKind};
use tools::client::{
    Atomic, Client, ClientError, ClientFiles, ClientTls, Identity, Session, SessionOptions,
    TlsError,
};
use tools::control::{Op, Request};

/// What no eavesdropper shall find.
const MARKER: &[u8] = b"the marker that nobody on the way may read";

/// A CA, and where its certificate is.
struct Ca(CertifiedIssuer<'static, KeyPair>, PathBuf);

impl Ca {
    fn new(image: &Image, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let common_name = rcgen::DnType::CommonName;
        params.distinguished_name.push(common_name, name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let path = image.beside(&format!("{name}.pem"));
        fs::write(&path, issuer.pem()).unwrap();
        Self(issuer, path)
    }

    fn path(&self) -> &str {
        self.1.to_str().unwrap()
    }

    /// Its list of revoked certificates, with those in these files.
    fn revoke(&self, files: &[&str]) -> String {
        let now = rcgen::date_time_ymd(2020, 1, 1);
        let revoked = files.iter().map(|file| RevokedCertParams {
            serial_number: serial_number(file),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// Files with a certificate for these names, valid for long until that year, and its key.
    fn issue(&self, image: &Image, file: &str, names: &[&str], year: i32) -> [String; 2] {
        self.issue_for(image, file, names, 2000..year)
    }

    /// The same, valid from the first of these years on until the last.
    fn issue_for(
        &self,
        image: &Image,
        file: &str,
        names: &[&str],
        years: Range<i32>,
    ) -> [String; 2] {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(serial_number(file));
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let paths = ["crt", "key"].map(|end| image.beside(&format!("{file}.{end}")));
        fs::write(&paths[0], certificate.pem()).unwrap();
        fs::write(&paths[1], key.serialize_pem()).unwrap();
        fs::set_permissions(&paths[1], fs::Permissions::from_mode(0o600)).unwrap();
        paths.map(|path| path.to_str().unwrap().to_owned())
    }
}

fn serial_number(file: &str) -> SerialNumber {
    file.as_bytes().to_vec().into()
}

/// A volume, a CA, and a certificate of it for the target.
struct Place {
    image: Image,
    ca: Ca,
    files: [String; 2],
}

impl Place {
    fn new() -> Self {
        let image = Image::new("128MiB");
        let ca = Ca::new(&image, "authority");
        let files = ca.issue(&image, "target", &["localhost", "127.0.0.1"], 4000);
        Self { image, ca, files }
    }

    /// A target that listens for TLS too, and where.
    fn serve(&self, more: &[&str]) -> (Target, SocketAddr) {
        self.serve_at("127.0.0.1:0", more)
    }

    fn serve_at(&self, at: &str, more: &[&str]) -> (Target, SocketAddr) {
        let ready = self.image.beside("ready");
        let mut options = vec!["--tls-listen", at, "--ready-file", ready.to_str().unwrap()];
        options.extend(["--tls-cert", &self.files[0], "--tls-key", &self.files[1]]);
        options.extend(more);
        let target = self.image.serve(&options);
        (target, self.tls_address())
    }

    /// Where the target that has started last listens for TLS.
    fn tls_address(&self) -> SocketAddr {
        let ready = fs::read_to_string(self.image.beside("ready")).unwrap();
        ready.lines().nth(1).unwrap().parse().unwrap()
    }

    fn tls(&self) -> ClientTls {
        ClientTls::new(&self.client_files()).unwrap()
    }

    fn client_files(&self) -> ClientFiles {
        ClientFiles {
            ca: Some(self.ca.1.clone()),
            ..ClientFiles::default()
        }
    }

    fn session(&self, at: SocketAddr) -> Result<Session, ClientError> {
        Session::connect(at, by(self.tls()))
    }

    fn client(&self, at: SocketAddr) -> Client {
        Client::builder().tls(self.tls()).connect(at).unwrap()
    }
}

fn by(tls: ClientTls) -> SessionOptions {
    SessionOptions {
        tls: Some(tls),
        ..SessionOptions::default()
    }
}

fn stat(session: &mut Session) -> Result<(), ClientError> {
    session.call(Request::new(Op::Stat, "/")).map(drop)
}

/// What a wire does to what passes.
#[derive(Default)]
struct Nature {
    /// What the target says is lost.
    deaf: AtomicBool,
    /// The next bytes of the client arrive with one bit changed.
    flips: AtomicBool,
    /// And those of the target.
    flips_back: AtomicBool,
    /// Everything, in both directions.
    record: Mutex<Vec<u8>>,
    sockets: Mutex<Vec<TcpStream>>,
}

/// Everything between clients and a target.
struct Wire {
    address: SocketAddr,
    nature: Arc<Nature>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let nature = Arc::<Nature>::default();
        let of_all = Arc::clone(&nature);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(target)) = (client, TcpStream::connect(target)) else {
                    continue;
                };
                let copy = |stream: &TcpStream| stream.try_clone().unwrap();
                let both = [copy(&client), copy(&target)];
                of_all.sockets.lock().unwrap().extend(both);
                let (up, down) = (copy(&client), copy(&target));
                let (nature, again) = (Arc::clone(&of_all), Arc::clone(&of_all));
                thread::spawn(move || pass(up, target, &nature, true));
                thread::spawn(move || pass(down, client, &again, false));
            }
        });
        Self { address, nature }
    }

    fn cut(&self) {
        for socket in self.nature.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.nature.deaf.store(false, Ordering::SeqCst);
    }

    fn carried(&self, bytes: &[u8]) -> bool {
        let record = self.nature.record.lock().unwrap();
        record.windows(bytes.len()).any(|window| window == bytes)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, nature: &Nature, up: bool) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !up && nature.deaf.load(Ordering::SeqCst) {
            continue;
        }
        let flips = if up {
            &nature.flips
        } else {
            &nature.flips_back
        };
        if flips.swap(false, Ordering::SeqCst) {
            bytes[count - 1] ^= 4;
        }
        nature
            .record
            .lock()
            .unwrap()
            .extend_from_slice(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Files go there and back by the commands, by the client and by tasks, and nobody on the way reads a byte of them, while
/// everybody does without TLS (RELIABILITY §2: on-path attacker).
#[test]
fn nobody_on_the_way_reads() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let (target, at) = place.serve(&[]);
    let (sealed, plain) = (Wire::to(at), Wire::to(target.address));
    let mut content = pattern(3_000_001, 1);
    content.extend_from_slice(MARKER);
    let (local, back) = (place.image.beside("local"), place.image.beside("back"));
    fs::write(&local, &content).unwrap();
    let (local, back) = (local.to_str().unwrap(), back.to_str().unwrap());
    let tls = ["--json", "--tls", "--tls-ca", place.ca.path()];
    let url = format!("localhost:{}/sealed", sealed.address.port());
    let checksum = |text: &str| {
        let report: serde_json::Value = serde_json::from_str(text).unwrap();
        report["crc32"].as_str().unwrap().to_owned()
    };
    let put = good(&[&["put", local, &url], &tls[..]].concat());
    let got = good(&[&["get", &url, back], &tls[..]].concat());
    assert_eq!(checksum(&put), checksum(&got));
    assert!(fs::read(back).unwrap() == content);
    assert!(good(&[&["stat", &url], &tls[..]].concat()).contains("3000043"));
    let root = url.replace("/sealed", "/");
    assert!(good(&[&["ls", &root], &tls[..]].concat()).contains("sealed"));

    let client = place.client(sealed.address);
    let options = client.options().write(true).create(true).truncate(1 << 20);
    let file = options.open("/by-client").unwrap();
    file.write_at(MARKER, 77).unwrap();
    file.flush().unwrap();
    let add = Atomic::FetchAdd { add: 5, mask: 0 };
    assert_eq!(file.atomic(8, add).unwrap(), 0);
    assert_eq!(file.atomic(8, add).unwrap(), 5);
    let connected = Client::builder()
        .tls(place.tls())
        .connect_async(sealed.address);
    let tasks = wait(connected).unwrap();
    let seen = wait(tasks.open("/by-client")).unwrap();
    let found = wait(seen.read_at(77, MARKER.len())).unwrap();
    assert_eq!(&found[..], MARKER);

    assert!(!sealed.carried(MARKER) && !sealed.carried(b"by-client"));
    let url = format!("localhost:{}/sealed", plain.address.port());
    good(&["get", &url, back]);
    assert!(plain.carried(MARKER), "the wire would have shown it");
    assert!(target.stop().success());
}

/// Who is not whom the other wants to see gets no connection, and hears what is wrong and what helps.
#[test]
fn strangers_are_told() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let other = Ca::new(&place.image, "other");
    let clients = Ca::new(&place.image, "clients");
    let [own, own_key] = clients.issue(&place.image, "client", &["someone"], 4000);
    let [foreign, foreign_key] = other.issue(&place.image, "foreign", &["someone"], 4000);
    let [old, old_key] = clients.issue(&place.image, "old", &["someone"], 2001);
    let [early, early_key] = clients.issue_for(&place.image, "early", &["someone"], 3000..4000);

    let (target, at) = place.serve(&[]);
    let url = format!("{at}/");
    let by_name = format!("localhost:{}/", at.port());
    let ca = ["--tls", "--tls-ca", place.ca.path()];
    let try_it = |more: &[&str]| bad(&[&["ls", &url], more].concat());
    good(&[&["ls", &url], &ca[..]].concat());
    good(&[&["ls", &by_name], &ca[..]].concat());
    let said = try_it(&["--tls", "--tls-ca", other.path()]);
    assert!(said.contains("not signed by a CA"), "{said}");
    assert!(said.contains("--tls-ca"), "{said}");
    let said = try_it(&["--tls"]);
    assert!(said.contains("--tls-ca"), "{said}");
    let said = try_it(&[&ca[..], &["--tls-name", "elsewhere"]].concat());
    assert!(said.contains("elsewhere"), "{said}");
    assert!(said.contains("localhost"), "{said}");
    assert!(said.contains("--tls-name"), "{said}");
    // The wrong way round, both ways.
    let said = try_it(&[]);
    assert!(said.contains("wants TLS on this port (--tls)"), "{said}");
    let plainly = target.url("/");
    let said = bad(&[&["ls", &plainly], &ca[..]].concat());
    assert!(said.contains("is it the TLS port"), "{said}");
    assert!(target.stop().success());

    // Certificates of clients.
    let (target, at) = place.serve(&["--tls-client-ca", clients.path()]);
    let url = format!("{at}/");
    let own_files = |certificate: &str, key: &str| {
        let own = ["--tls-cert", certificate, "--tls-key", key].map(str::to_owned);
        let all = ["ls".to_owned(), url.clone()].into_iter();
        all.chain(ca.map(str::to_owned)).chain(own)
    };
    good(&own_files(&own, &own_key).collect::<Vec<_>>());
    for (certificate, key, why) in [
        (&foreign, &foreign_key, "CA"),
        (&old, &old_key, "it has expired"),
        // The alert is that of one that has expired; who only reads that looks for the wrong mistake.
        (&early, &early_key, "not valid yet"),
    ] {
        let said = bad(&own_files(certificate, key).collect::<Vec<_>>());
        assert!(said.contains("does not accept"), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let said = bad(&[&["ls", &url], &ca[..]].concat());
    assert!(said.contains("wants a certificate"), "{said}");
    assert!(said.contains("--tls-cert"), "{said}");
    let said = bad(&own_files(&own, &foreign_key).collect::<Vec<_>>());
    assert!(said.contains(&own), "{said}");
    // A client that goes on for a while gives up at once: it will not be otherwise the next time.
    let refused = Client::builder().tls(place.tls()).connect(at).unwrap_err();
    let wanted = |error: &ClientError| {
        let ClientError::Tls { cause, .. } = error else {
            return false;
        };
        *cause == TlsError::CertificateWanted
    };
    assert!(wanted(&refused), "{refused}");
    assert!(target.stop().success());

    // A target whose certificate has expired.
    let names = ["localhost", "127.0.0.1"];
    place.ca.issue(&place.image, "target", &names, 2001);
    let (target, at) = place.serve(&[]);
    let said = bad(&[&["ls", &format!("{at}/")], &ca[..]].concat());
    assert!(said.contains("has expired"), "{said}");
    assert!(target.stop().success());
}

/// Whose certificate was revoked is not let in, and hears so; others of the same CA are. Where there is no list of a CA, nobody knows, and nobody
/// of it is.
#[test]
fn revoked_certificates() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let clients = Ca::new(&place.image, "clients");
    let good_one = clients.issue(&place.image, "good", &["someone"], 4000);
    let revoked = clients.issue(&place.image, "revoked", &["someone else"], 4000);
    let list = |ca: &Ca, name: &str, of: &[&str]| {
        let path = place.image.beside(name);
        fs::write(&path, ca.revoke(of)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ca = ["--tls-client-ca", clients.path()];
    let try_it = |at: SocketAddr, [certificate, key]: &[String; 2]| {
        let url = format!("{at}/");
        let tls = ["ls", &url, "--tls", "--tls-ca", place.ca.path()];
        let own = ["--tls-cert", certificate, "--tls-key", key];
        let output = Command::new(FLASHNET).args(tls).args(own).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(said)
        }
    };

    let crl = list(&clients, "crl.pem", &["revoked"]);
    let (target, at) = place.serve(&[&ca[..], &["--tls-client-crl", &crl]].concat());
    try_it(at, &good_one).unwrap();
    let said = try_it(at, &revoked).unwrap_err();
    assert!(said.contains("it has been revoked"), "{said}");
    assert!(target.stop().success());

    let other = list(&place.ca, "other.pem", &[]);
    let (target, at) = place.serve(&[&ca[..], &["--tls-client-crl", &other]].concat());
    let said = try_it(at, &good_one).unwrap_err();
    assert!(said.contains("no list of revoked certificates"), "{said}");
    assert!(target.stop().success());

    let image = place.image.path();
    let [certificate, key] = &place.files;
    let all = ["serve", image.to_str().unwrap(), "--listen", "none"];
    let pair = ["--tls-cert", certificate, "--tls-key", key];
    let list = ["--tls-client-crl", clients.path()];
    let said = bad(&[&all[..], &pair, &ca, &list].concat());
    assert!(said.contains("list of revoked certificates"), "{said}");
    let said = wrong(&[&all[..], &pair, &["--tls-client-crl", &crl]].concat());
    assert!(said.contains("--tls-client-ca"), "{said}");
}

/// A running target whose log is read.
struct Logged(Child, PathBuf);

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connections that say nothing, or nonsense, or stop in the middle, more than are kept: they disturb nobody who is there or
/// comes, and are logged with where they came from (I16; RELIABILITY §8, set-up abuse).
#[test]
fn nonsense_disturbs_nobody() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let (image, ready) = (place.image.path(), place.image.beside("ready"));
    let log = place.image.beside("log");
    let child = Command::new(FLASHNET)
        .args(["--json", "serve", "--listen", "none"])
        .args([&image, &PathBuf::from("--ready-file"), &ready])
        .args(["--tls-listen", "127.0.0.1:0"])
        .args(["--tls-cert", &place.files[0], "--tls-key", &place.files[1]])
        .env("FLASHNET_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let target = Logged(child, log);
    while !ready.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let at = place.tls_address();
    let mut there = place.session(at).unwrap();

    let hello = client_hello(&place);
    let mut half_open = Vec::new();
    for n in 0..600 {
        let mut stream = TcpStream::connect(at).unwrap();
        match n % 3 {
            // Nothing.
            0 => {}
            // The beginning of what would be good.
            1 => stream.write_all(&hello[..n % hello.len()]).unwrap(),
            // All of it, and then nothing.
            _ => stream.write_all(&hello).unwrap(),
        }
        half_open.push(stream);
        if n % 100 == 99 {
            stat(&mut there).unwrap();
            let mut comes = place.session(at).unwrap();
            stat(&mut comes).unwrap();
            comes.close();
        }
    }
    let open = fs::read_dir(format!("/proc/{}/fd", target.0.id())).unwrap();
    let is_socket = |path: PathBuf| path.to_string_lossy().starts_with("socket:");
    let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets = open.filter(|path| is_socket(path.clone())).count();
    assert!(sockets < 300, "{sockets} sockets are kept");
    let first_port = half_open[0].local_addr().unwrap().port();
    // Those that waited longest have been sent away.
    let _ = common::drain(&mut half_open[0]);
    for n in 0..50 {
        let mut stream = TcpStream::connect(at).unwrap();
        let nonsense = pattern(1 + 37 * n, n as u64);
        stream.write_all(&nonsense).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        common::drain(&mut stream);
    }
    // A record of TLS, and nonsense in it.
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .write_all(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff")
        .unwrap();
    let answer = common::drain(&mut stream);
    assert_eq!(answer[..3], [21, 3, 3], "an alert");
    let port = stream.local_addr().unwrap().port();
    stat(&mut there).unwrap();
    there.close();
    drop(half_open);
    let logged = fs::read_to_string(&target.1).unwrap();
    for port in [first_port, port] {
        assert!(logged.contains(&format!("127.0.0.1:{port}")), "{port}");
    }
    assert!(logged.contains("does not speak TLS"));
    // It ends in order, with guests in its lobby.
    let _waits = TcpStream::connect(at).unwrap();
    let _open = place.session(at).unwrap();
    let mut target = target;
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(target.0.id() as i32, libc::SIGTERM) };
    assert!(target.0.wait().unwrap().success());
}

/// Who breaks its stream behind something that is to be answered ends its own connection, and nobody else's (I10).
#[test]
fn a_broken_stream_is_its_own_end() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let (target, at) = place.serve(&[]);
    let mut there = place.session(at).unwrap();
    for round in 0..20 {
        let mut stream = TcpStream::connect(at).unwrap();
        let patience = Duration::from_secs(60);
        let mut records = place.tls().connect(&stream, at, patience).unwrap();
        let mut request = Vec::new();
        StartFrame {
            kind: StartKind::Request,
            markers: false,
            crc: false,
            rejected: false,
            revision: 1,
            enhanced: None,
            private_data: &[],
        }
        .emit(&mut request);
        let mut sealed = Vec::new();
        records.seal(&request, &mut sealed);
        stream.write_all(&sealed).unwrap();
        let mut reply = Vec::new();
        while reply.len() < request.len() {
            let mut said = [0; 4096];
            let count = stream.read(&mut said).unwrap();
            assert!(count > 0);
            let take = |bytes: &[u8]| reply.extend_from_slice(bytes);
            records.open(&said[..count], take).unwrap();
        }
        assert_eq!(reply[16] & 0x20, 0, "accepted");
        // An FPDU of an operation that there is not, which is answered by a Terminate, and what is no record.
        let mut sealed = Vec::new();
        records.seal(&[0, 20, 0x41, 0x4f], &mut sealed);
        records.seal(&[0; 22], &mut sealed);
        sealed.extend_from_slice(b"\x17\x03\x03\x00\x20this is no record, nor any other");
        if round % 2 == 1 {
            records.finish(&mut sealed);
        }
        stream.write_all(&sealed).unwrap();
        common::drain(&mut stream);
        stat(&mut there).unwrap();
    }
    there.close();
    assert!(target.stop().success());
}

/// Clients that come all at once, as behind a target that was not there for a moment, all get in, though they are more than the
/// lobby has room for.
#[test]
fn a_crowd_gets_in() {
    if !can_serve() {
        return;
    }
    const CROWD: usize = 300;
    let place = Place::new();
    let (target, at) = place.serve(&["--pool", "64MiB"]);
    let signal = |signal| {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(target.pid() as i32, signal) };
    };
    signal(libc::SIGSTOP);
    let come = AtomicUsize::new(0);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    let stream = TcpStream::connect(at).unwrap();
                    come.fetch_add(1, Ordering::SeqCst);
                    let patience = Duration::from_secs(60);
                    place.tls().connect(&stream, at, patience).map(drop)
                })
            })
            .collect();
        while come.load(Ordering::SeqCst) < CROWD {
            thread::sleep(Duration::from_millis(1));
        }
        // Their first words are on their way.
        thread::sleep(Duration::from_millis(200));
        signal(libc::SIGCONT);
        for client in clients {
            client.join().unwrap().unwrap();
        }
    });
    assert!(target.stop().success());
}

/// The first thing that a client says.
fn client_hello(place: &Place) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let tls = place.tls();
    let connecting = thread::spawn(move || Session::connect(at, by(tls)).map(drop));
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut body).unwrap();
    drop(stream);
    // Whoever ends before TLS is set up is not trusted, and not believed to be for ever so.
    match connecting.join().unwrap() {
        Err(ClientError::Tls { cause, .. }) => assert_eq!(cause, TlsError::Ended),
        Err(ClientError::Connect { .. }) => {}
        other => panic!("{other:?}"),
    }
    [&head[..], &body].concat()
}

/// A stream that is cut, or changed, is a connection that is lost: the client makes another and repeats what was not
/// acknowledged, and nothing that was is lost (I1, I13).
#[test]
fn a_cut_is_no_end() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let (target, at) = place.serve(&[]);
    let wire = Wire::to(at);
    let mut session = place.session(wire.address).unwrap();
    wire.cut();
    // A socket that ends without a word is no peer that has finished.
    match stat(&mut session) {
        Err(ClientError::Closed { reason, .. }) => assert_eq!(reason, CloseReason::Lost),
        other => panic!("{other:?}"),
    }

    let client = place.client(wire.address);
    let options = client.options().write(true).sync(true).create(true);
    let file = options.truncate(1 << 20).open("/file").unwrap();
    let mut wanted = vec![0; 1 << 20];
    for round in 0..30_u64 {
        let (at, bytes) = ((round * 31_337 % 900_000) as usize, pattern(100_000, round));
        match round % 3 {
            // What the target says is lost, so nothing is acknowledged; then the stream ends.
            0 => {
                wire.nature.deaf.store(true, Ordering::SeqCst);
                let (nature, writing) = (Arc::clone(&wire.nature), file.clone());
                let copy = bytes.clone();
                let before = nature.record.lock().unwrap().len();
                let writer = thread::spawn(move || writing.write_at(&copy, at as u64));
                while nature.record.lock().unwrap().len() < before + 50_000 {
                    thread::yield_now();
                }
                wire.cut();
                writer.join().unwrap().unwrap();
            }
            // One bit on the way is another.
            1 => {
                wire.nature.flips.store(true, Ordering::SeqCst);
                file.write_at(&bytes, at as u64).unwrap();
                assert!(!wire.nature.flips.load(Ordering::SeqCst));
            }
            _ => file.write_at(&bytes, at as u64).unwrap(),
        }
        wanted[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    // Nor is it one when the client waits for an answer, or for nothing.
    for round in 0..10 {
        let nature = &wire.nature;
        match round % 3 {
            0 => nature.flips_back.store(true, Ordering::SeqCst),
            1 => nature.flips.store(true, Ordering::SeqCst),
            _ => {
                // The first of a pair is the client's.
                let sockets = nature.sockets.lock().unwrap();
                let mut to_client = &sockets[sockets.len() - 2];
                to_client.write_all(b"nonsense, of no record").unwrap();
            }
        }
        assert_eq!(client.stat("/file").unwrap().size, 1 << 20);
        assert!(!nature.flips.load(Ordering::SeqCst));
        assert!(!nature.flips_back.load(Ordering::SeqCst));
        if round % 3 == 2 {
            // It may have been told while nothing was under way.
            thread::sleep(Duration::from_millis(20));
            assert_eq!(client.stat("/file").unwrap().size, 1 << 20);
        }
    }
    let mut found = vec![0; 1 << 20];
    file.read_at(&mut found, 0).unwrap();
    assert!(found == wanted);
    // Somebody else, without TLS, sees the same, and after a kill as well: it was durable.
    target.kill();
    let (target, _) = place.serve(&[]);
    let plain = Client::connect(target.address).unwrap();
    plain.open("/file").unwrap().read_at(&mut found, 0).unwrap();
    assert!(found == wanted);
    assert!(target.stop().success());
}

/// Clients go on when the target is killed and starts again, and when another takes over, which gets the listening socket for
/// TLS from it (D11); and it ends in order under them.
#[test]
fn clients_outlive_targets() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let (target, at) = place.serve(&["--reactors", "2"]);
    let client = place.client(at);
    let options = client.options().write(true).sync(true).create(true);
    let file = options.truncate(100_000).open("/file").unwrap();
    let content = pattern(100_000, 9);
    file.write_at(&content[..50_000], 0).unwrap();
    target.kill();
    let (target, again) = place.serve_at(&at.to_string(), &[]);
    assert_eq!(at, again);
    file.write_at(&content[50_000..], 50_000).unwrap();
    let mut found = vec![0; 100_000];
    file.read_at(&mut found, 0).unwrap();
    assert!(found == content);

    // With any free port: only the socket of the other can make it the same.
    let (second, again) = place.serve(&["--replace"]);
    assert_eq!(at, again);
    assert!(target.ended().success());
    file.read_at(&mut found, 0).unwrap();
    assert!(found == content);
    // And to one that has no TLS, which the client cannot use.
    let third = place.image.serve(&["--replace"]);
    assert!(second.ended().success());
    assert!(TcpStream::connect(at).is_err());
    let (fourth, _) = place.serve_at(&at.to_string(), &["--replace"]);
    assert!(third.ended().success());
    file.read_at(&mut found, 0).unwrap();
    assert!(found == content);
    // The port of the one kind becomes that of the other.
    let address = at.to_string();
    let options = ["--replace", "--listen", &address];
    let fifth = place.image.serve(&options);
    assert!(fourth.ended().success());
    assert_eq!(fifth.address, at);
    good(&["ls", &fifth.url("/")]);
    assert!(fifth.stop().success());
    let (fourth, _) = place.serve_at(&address, &[]);
    let sessions: Vec<_> = (0..20).map(|_| place.session(at).unwrap()).collect();
    assert!(fourth.stop().success());
    // An end in order is announced.
    for mut session in sessions {
        match stat(&mut session) {
            Err(ClientError::Closed { reason, .. }) => assert_eq!(reason, CloseReason::Graceful),
            other => panic!("{other:?}"),
        }
    }
    good(&["fsck", place.image.path().to_str().unwrap()]);
}

/// TLS says who the target is, and a token says who the client is; each is asked for where both are (D15).
#[test]
fn tokens_inside_of_tls() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let text = |name: &str| place.image.beside(name).to_str().unwrap().to_owned();
    let (key, token, config) = (text("alpha.key"), text("token"), text("target.toml"));
    good(&["token", "key", &key]);
    let make = ["token", "make", "--tenant", "alpha", "--key-file", &key];
    good(&[&make[..], &["-o", &token]].concat());
    // Both by the configuration file.
    let toml = format!(
        "[[tenant]]\nname = \"alpha\"\nkey_file = {key:?}\n\
         [tls]\nlisten = \"127.0.0.1:0\"\ncert = {:?}\nkey = {:?}\n",
        place.files[0], place.files[1]
    );
    fs::write(&config, toml).unwrap();
    let ready = text("ready");
    let target = place
        .image
        .serve(&["--config", &config, "--ready-file", &ready]);
    let at = place.tls_address();
    let url = format!("{at}/x");
    let tls = ["--tls", "--tls-ca", place.ca.path()];
    let said = bad(&[&["put", &config, &url], &tls[..]].concat());
    assert!(said.contains("--token-file"), "{said}");
    let with = [&tls[..], &["--token-file", &token]].concat();
    good(&[&["put", &config, &url], &with[..]].concat());
    let identity = Identity::of_file(Some(&place.image.beside("token"))).unwrap();
    let builder = Client::builder().tls(place.tls()).identity(identity);
    let client = builder.connect(at).unwrap();
    assert!(client.stat("/x").unwrap().size > 0);
    let nobody = Client::builder().tls(place.tls()).connect(at);
    assert!(matches!(nobody, Err(ClientError::Denied { .. })));
    assert!(target.stop().success());
}

/// A target with TLS that is set up wrongly does not start, and says what is wrong; beyond loopback it needs to know who
/// connects, by certificates of clients as well.
#[test]
fn set_up_with_care() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let image = place.image.path();
    let all = ["serve", image.to_str().unwrap(), "--listen", "none"];
    let start = |more: &[&str]| bad(&[&all[..], more].concat());
    let asks_wrongly = |more: &[&str]| wrong(&[&all[..], more].concat());
    let [certificate, key] = &place.files;
    let pair = ["--tls-cert", certificate, "--tls-key", key];
    let said = asks_wrongly(&["--tls-listen", "127.0.0.1:0"]);
    assert!(said.contains("--tls-cert"), "{said}");
    let said = start(&["--tls-cert", key, "--tls-key", key]);
    assert!(said.contains(key) && said.contains("certificate"), "{said}");
    let said = start(&["--tls-cert", certificate, "--tls-key", "/nothing"]);
    assert!(said.contains("/nothing"), "{said}");
    let [_, foreign] = place.ca.issue(&place.image, "foreign", &["x"], 4000);
    let said = start(&["--tls-cert", certificate, "--tls-key", &foreign]);
    assert!(said.contains(&foreign), "{said}");
    let said = start(&[&pair[..], &["--tls-client-ca", key]].concat());
    assert!(said.contains("certificate"), "{said}");
    let said = asks_wrongly(&[&pair[..], &["--tls-listen", "0.0.0.0:0"]].concat());
    assert!(said.contains("--tls-client-ca"), "{said}");
    // Longer than any, as /dev/zero is.
    let long = place.image.beside("long.pem");
    let content = fs::read_to_string(certificate).unwrap() + &"\n".repeat(20 << 20);
    fs::write(&long, content).unwrap();
    let long = long.to_str().unwrap();
    let said = start(&["--tls-cert", long, "--tls-key", key, "--mount", "/nothing"]);
    assert!(said.contains(long) && said.contains("too large"), "{said}");
    for mode in [0o644, 0o602] {
        fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
        let said = start(&pair);
        assert!(said.contains("chmod"), "{said}");
    }
    fs::set_permissions(key, fs::Permissions::from_mode(0o640)).unwrap();
    let ca = ["--tls-client-ca", place.ca.path()];
    let (target, at) = place.serve_at("0.0.0.0:0", &ca);
    assert!(at.ip().is_unspecified());
    assert!(target.stop().success());
}
