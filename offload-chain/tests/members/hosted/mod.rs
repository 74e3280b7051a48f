//! A group of members that run as hosts in this process, and its clients.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use offload_chain::client::{Client, ClientSettings};
use offload_chain::config::{Event, Expect, FileStore, Reply, Request, Revision, Store};
use offload_chain::group::Topology;
use offload_chain::host::{Host, HostSettings, Timing};
use offload_chain::log::{Entry, Preset};
use offload_chain::membership::{Birth, CONFIG, Configuration, MemberId, SlowPolicy, encode};
use tempfile::TempDir;

/// Nothing here is expected to take so long.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Group {
    dir: TempDir,
}

impl Group {
    pub fn create(members: u32, executes: bool) -> Self {
        Self::born(
            members,
            Birth {
                executes,
                ..birth()
            },
        )
    }

    pub fn born(members: u32, birth: Birth) -> Self {
        let group = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        group.make(members, birth);
        group
    }

    /// Makes the group in the store.
    pub fn make(&self, members: u32, birth: Birth) {
        let mut store = self.store();
        store.submit(Request::Put {
            key: CONFIG.to_owned(),
            value: encode(&Configuration::new(
                birth,
                (1..=members).map(MemberId).collect(),
            )),
            expect: Expect::Revision(Revision::ABSENT),
            lease: None,
        });
        let made = store.poll();
        assert!(matches!(made, Some(Event::Answer(_, Ok(Reply::Done(_))))));
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn store(&self) -> FileStore {
        FileStore::open(&self.path().join("store")).unwrap()
    }

    pub fn serve(&self, member: u32) -> Host {
        self.serve_at(member, None)
    }

    pub fn serve_at(&self, member: u32, advertise: Option<SocketAddr>) -> Host {
        let settings = HostSettings {
            advertise: advertise.map(|address| address.to_string()),
            ..self.settings(member)
        };
        Host::start(settings, Box::new(self.store())).unwrap()
    }

    pub fn settings(&self, member: u32) -> HostSettings {
        HostSettings {
            member: MemberId(member),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            memory: Some(self.path().join(member.to_string())),
            timing: timing(),
            slow: SlowPolicy::default(),
            spin: Duration::ZERO,
            on_engine_thread: None,
            watcher: None,
            tls: None,
        }
    }

    pub fn client(&self, preset: Preset) -> Client {
        self.client_of(preset, timing())
    }

    pub fn client_of(&self, preset: Preset, timing: Timing) -> Client {
        let settings = ClientSettings {
            preset,
            timing,
            timeout: LONG,
            ..ClientSettings::default()
        };
        Client::connect(Box::new(self.store()), settings).unwrap()
    }
}

pub fn birth() -> Birth {
    Birth {
        locks: 4,
        ring_bytes: 16 << 10,
        data_bytes: 64 << 10,
        salt: 77,
        token: [5; 16],
        topology: Topology::Chain,
        executes: true,
        durable: true,
    }
}

/// Slower than the default: these tests run beside others.
pub fn timing() -> Timing {
    Timing {
        period: Duration::from_millis(100),
        misses: 20,
        patience: Duration::from_secs(1),
        media_patience: Duration::from_secs(1),
        read_lease: Duration::from_secs(1),
    }
}

pub fn entry(offset: u64, bytes: &[u8]) -> Vec<Entry> {
    let bytes = bytes.to_vec();
    vec![Entry { offset, bytes }]
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
