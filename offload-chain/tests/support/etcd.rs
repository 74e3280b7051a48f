//! A real etcd of one member, or of two, for tests: started, killed and started again on the same data. Other crates' tests include this
//! file by its path; it needs `tempfile`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How long etcd may take until it answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// An etcd, which ends with this.
pub(crate) struct Etcd {
    child: Option<Child>,
    client: SocketAddr,
    peer: SocketAddr,
    /// It tells there how it is, in plain HTTP.
    health: SocketAddr,
    timing: Timing,
    enter: Enter,
    tls: Option<Tls>,
    directory: tempfile::TempDir,
    /// Name, and all members.
    cluster: (&'static str, String),
}

/// Moves the calling thread to the network that etcd is in. Called between fork and exec, too: system calls only.
pub(crate) type Enter = Arc<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// PEM files: etcd's certificate, which is its gateway's as well, its key, and the CA of those who may ask.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authority: PathBuf,
}

/// etcd's own times. A lease lasts one and a half elections at least.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) heartbeat_ms: u32,
    pub(crate) election_ms: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_ms: 100,
            election_ms: 1000,
        }
    }
}

impl Etcd {
    /// Starts one, and waits until it answers. `None`, and said why, if there is no etcd; unless `FLASHNET_REQUIRE` says that
    /// nothing may be skipped.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn start(timing: Timing) -> Option<Self> {
        Self::start_in(Self::host(), timing, Arc::new(|| Ok(())), None)
    }

    /// Starts one that speaks TLS only.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn start_tls(host: Ipv4Addr, tls: Tls) -> Option<Self> {
        Self::start_in(host, Timing::default(), Arc::new(|| Ok(())), Some(tls))
    }

    /// An address that nobody else has: nobody takes its ports while etcd is down, and no connection to it can meet itself.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn host() -> Ipv4Addr {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [high, low, ..] = (std::process::id() % 0xfe01 + 0x100).to_le_bytes();
        [127, low.max(1), high, COUNT.fetch_add(1, Ordering::Relaxed)].into()
    }

    /// Starts one with this address, which it has for itself, in another network.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn start_at(host: Ipv4Addr, timing: Timing, enter: Enter) -> Option<Self> {
        Self::start_in(host, timing, enter, None)
    }

    /// Starts two that are one cluster: neither does anything without the other.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn start_two(timing: Timing) -> Option<[Self; 2]> {
        let new = || Self::new(Self::host(), timing, Arc::new(|| Ok(())), None);
        let mut two = [new(), new()];
        let [one, other] = two.each_ref().map(|etcd| etcd.peer);
        let cluster = format!("one=http://{one},other=http://{other}");
        for (etcd, name) in two.iter_mut().zip(["one", "other"]) {
            etcd.cluster = (name, cluster.clone());
            if let Err(error) = etcd.spawn() {
                return skipped(&error);
            }
        }
        two.iter_mut().for_each(Self::wait);
        Some(two)
    }

    fn start_in(host: Ipv4Addr, timing: Timing, enter: Enter, tls: Option<Tls>) -> Option<Self> {
        let mut etcd = Self::new(host, timing, enter, tls);
        match etcd.spawn() {
            Ok(()) => {
                etcd.wait();
                Some(etcd)
            }
            Err(error) => skipped(&error),
        }
    }

    fn new(host: Ipv4Addr, timing: Timing, enter: Enter, tls: Option<Tls>) -> Self {
        let go = Arc::clone(&enter);
        let ports = move || {
            go()?;
            // All at once, or chance may give the same one twice.
            let listen = || TcpListener::bind((host, 0));
            let all = [listen()?, listen()?, listen()?];
            let [client, peer, health] = all.each_ref().map(TcpListener::local_addr);
            Ok::<_, std::io::Error>((client?, peer?, health?))
        };
        let (client, peer, health) = std::thread::spawn(ports).join().unwrap().unwrap();
        Self {
            child: None,
            client,
            peer,
            health,
            timing,
            enter,
            tls,
            directory: tempfile::tempdir().unwrap(),
            cluster: ("test", format!("test=http://{peer}")),
        }
    }

    /// `host:port`.
    pub(crate) fn place(&self) -> String {
        self.client.to_string()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it if it runs, starts it on the same data and ports, and waits until it answers.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.spawn().unwrap();
        self.wait();
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let [mut client, peer, health] =
            [self.client, self.peer, self.health].map(|place| format!("http://{place}"));
        if self.tls.is_some() {
            client = format!("https://{}", self.client);
        }
        let directory: &Path = self.directory.path();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))?;
        let arch = std::env::consts::ARCH.replace("aarch64", "arm64");
        let mut command = Command::new("etcd");
        let enter = Arc::clone(&self.enter);
        // SAFETY: as its type says, it makes system calls only.
        unsafe { command.pre_exec(move || enter()) };
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.certificate);
            command.arg("--key-file").arg(&tls.key);
            command.arg("--trusted-ca-file").arg(&tls.authority);
            command.arg("--client-cert-auth");
        }
        let child = command
            .args(["--name", self.cluster.0, "--data-dir"])
            .arg(directory.join("data"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--listen-metrics-urls", &health])
            .args(["--initial-advertise-peer-urls", &peer])
            .arg(format!("--initial-cluster={}", self.cluster.1))
            .arg(format!("--heartbeat-interval={}", self.timing.heartbeat_ms))
            .arg(format!("--election-timeout={}", self.timing.election_ms))
            .env("ETCD_UNSUPPORTED_ARCH", arch)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    fn wait(&mut self) {
        let patience = Instant::now() + PATIENCE;
        while !self.answers() {
            let ended =
                (self.child.as_mut()).is_none_or(|child| child.try_wait().unwrap().is_some());
            if ended || Instant::now() > patience {
                let log = std::fs::read_to_string(self.directory.path().join("log"));
                let log = log.unwrap_or_default();
                panic!("etcd does not start (ended: {ended}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has noticed that there is no leader any more.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn wait_until_leaderless(&self) {
        let patience = Instant::now() + PATIENCE;
        let leaderless = b"\netcd_server_has_leader 0\n";
        let says_so = |said: &[u8]| {
            said.windows(leaderless.len())
                .any(|line| line == leaderless)
        };
        while !self.says("/metrics").is_ok_and(|said| says_so(&said)) {
            assert!(Instant::now() < patience, "it has a leader");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it is healthy by its own account, so has a leader; which it tells without knowing who asks.
    fn answers(&self) -> bool {
        self.says("/health")
            .is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200 "))
    }

    fn says(&self, path: &'static str) -> std::io::Result<Vec<u8>> {
        let (host, enter) = (self.health, Arc::clone(&self.enter));
        let ask = move || {
            enter()?;
            let mut stream = TcpStream::connect_timeout(&host, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            )?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        // A thread of its own, since it does not come back from there.
        std::thread::spawn(ask).join().unwrap()
    }
}

/// Says why there is no etcd, unless there has to be one.
fn skipped<T>(error: &std::io::Error) -> Option<T> {
    let reason = format!("cannot start etcd (Debian: etcd-server): {error}");
    let require = std::env::var("FLASHNET_REQUIRE").unwrap_or_default();
    let required = require.split(',').any(|what| what == "all");
    assert!(!required, "must not be skipped: {reason}");
    // Not by `println`, of which nobody hears when the test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
    None
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
