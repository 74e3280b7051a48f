//! A group whose applications are stopped. Defends DESIGN D12: members' programs take no part in a primitive.
//!
//! Each of three members is two processes over one file: the engine, and an application that looks at the file. All
//! applications get SIGSTOP; then a client carries out ten thousand of each primitive, all of which end, with no time
//! spent in any application. Without a harness, since the processes are this program with other arguments.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use offload_chain::group::file::FilePages;
use offload_chain::group::tcp::{MemberServer, TcpClient};
use offload_chain::group::{
    Durability, GroupMemory, GroupShape, Member, MemberConfig, MemberMap, Outcome, Primitive,
    PrimitiveError, Primitives,
};
use softrdma::{BackingId, Config, ProtectionDomain, RegionTable, Time};

const MEMBERS: usize = 3;
const EACH: u64 = 10_000;
const LONG: Duration = Duration::from_secs(120);

fn main() {
    let args: Vec<_> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--engine") => engine(args[2].parse().unwrap(), Path::new(&args[3])),
        Some("--application") => application(Path::new(&args[2])),
        Some("--list") => {}
        _ => proof(),
    }
}

fn shape() -> GroupShape {
    GroupShape {
        slots: 128,
        depth: 256,
        ..GroupShape::new(*b"stopped programs", 1, MEMBERS, 1 << 20)
    }
}

fn link() -> Config {
    Config {
        private_profile: true,
        ..Config::default()
    }
}

/// Stands for the NIC of a member: says its port, hears those of all, serves until its input ends.
fn engine(number: usize, path: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addresses = line.split_whitespace().map(|at| at.parse().unwrap());
    let addresses: Vec<SocketAddr> = addresses.collect();
    let waker = Arc::new(OnceLock::<Arc<mio::Waker>>::new());
    let wake = Arc::clone(&waker);
    let wake = move || {
        if let Some(waker) = wake.get() {
            let _ = waker.wake();
        }
    };
    let pages = FilePages::open(path, shape().size, Box::new(wake)).unwrap();
    let config = MemberConfig {
        shape: shape(),
        member: number,
        memory: GroupMemory::Pages {
            backing: BackingId(1),
            offset: 0,
        },
        domains: [ProtectionDomain(1), ProtectionDomain(2)],
        link: link(),
        reads: None,
        planted: None,
    };
    let table = RegionTable::new([number as u8; 32]);
    let member = Member::new(config, pages, &table, Time(0)).unwrap();
    let mut server = MemberServer::new(member, listener, &addresses).unwrap();
    waker.set(server.waker().unwrap()).unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&end);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Release);
    });
    server.run(&end).unwrap();
}

/// Looks at the memory of its member for ever.
fn application(path: &Path) {
    let file = File::open(path).unwrap();
    println!("up");
    let mut word = [0; 8];
    loop {
        file.read_exact_at(&mut word, 0).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process of this program; ends with it.
struct Process(Child, BufReader<std::process::ChildStdout>);

impl Process {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// State, and ticks of processor time.
    fn state(&self) -> (String, u64) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<_> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        (fields[0].to_owned(), ticks(11) + ticks(12))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Posts all, and waits for all outcomes.
fn carry_out(client: &mut TcpClient, name: &str, primitives: impl Iterator<Item = Primitive>) {
    let take = |client: &mut TcpClient| {
        let (_, outcome) = client.wait(LONG).unwrap().expect("an outcome in time");
        outcome.unwrap()
    };
    let (mut posted, mut done) = (0, 0);
    for primitive in primitives {
        loop {
            match client.post(primitive.clone()) {
                Ok(_) => break,
                Err(PrimitiveError::Full) => {
                    take(client);
                    done += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        posted += 1;
    }
    while done < posted {
        take(client);
        done += 1;
    }
    println!("{name}: {done} done");
}

fn proof() {
    let dir = tempfile::tempdir().unwrap();
    let path = |member: usize| dir.path().join(member.to_string());
    let text = |member: usize| path(member).to_str().unwrap().to_owned();
    let start = |member: usize| Process::start(&["--engine", &member.to_string(), &text(member)]);
    let mut engines: Vec<_> = (0..MEMBERS).map(start).collect();
    let addresses: Vec<_> = engines.iter_mut().map(Process::line).collect();
    for engine in &mut engines {
        let input = engine.0.stdin.as_mut().unwrap();
        writeln!(input, "{}", addresses.join(" ")).unwrap();
    }
    let addresses: Vec<SocketAddr> = addresses.iter().map(|at| at.parse().unwrap()).collect();
    let mut client = TcpClient::connect(shape(), 0, &addresses, &link(), [7; 32], LONG).unwrap();

    let start = |member: usize| Process::start(&["--application", &text(member)]);
    let mut applications: Vec<_> = (0..MEMBERS).map(start).collect();
    let mut before = Vec::new();
    for application in &mut applications {
        assert_eq!(application.line(), "up");
        application.signal("-STOP");
        while application.state().0 != "T" {
            std::thread::yield_now();
        }
        before.push(application.state());
    }

    let write = |turn: u64| Primitive::Write {
        offset: 4096 + turn % 1000 * 8,
        bytes: turn.to_le_bytes().to_vec(),
        durability: Durability::Visible,
    };
    carry_out(&mut client, "gWRITE", (0..EACH).map(write));
    let cas = |turn| Primitive::Cas {
        offset: 0,
        old: turn,
        new: turn + 1,
        execute: MemberMap::first(MEMBERS),
        durability: Durability::Visible,
    };
    carry_out(&mut client, "gCAS", (0..EACH).map(cas));
    let copy = |turn| Primitive::Memcpy {
        source: 4096,
        destination: 16_384 + turn % 100 * 4096,
        length: 4096,
        durability: Durability::Visible,
    };
    carry_out(&mut client, "gMEMCPY", (0..EACH).map(copy));
    // There is something to flush each time.
    let flush = |turn| [write(turn), Primitive::Flush];
    carry_out(
        &mut client,
        "gFLUSH and as many gWRITEs",
        (0..EACH).flat_map(flush),
    );

    for member in 0..MEMBERS {
        let read = Primitive::Read {
            member,
            offset: 0,
            length: 8,
        };
        client.post(read).unwrap();
        let (_, counter) = client.wait(LONG).unwrap().expect("an outcome in time");
        assert_eq!(counter, Ok(Outcome::Read(EACH.to_le_bytes().to_vec())));
    }
    for (application, before) in applications.iter().zip(before) {
        assert_eq!(
            application.state(),
            before,
            "stopped all the time, and no tick spent"
        );
    }
    let memory = |member| std::fs::read(path(member)).unwrap();
    let first = memory(0);
    assert_eq!(first[4096..4104], (EACH - 1000).to_le_bytes());
    // The gWRITEs behind the copies wrote what was there before.
    for copy in first[16_384..].chunks(4096).take(100) {
        assert!(copy == &first[4096..8192], "a gMEMCPY copied nothing");
    }
    assert!(
        (1..MEMBERS).all(|member| memory(member) == first),
        "members differ (I15)"
    );
    println!("all applications stopped: ok");
}
