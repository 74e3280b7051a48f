//! A chain over TCP on this machine, each member in a thread of its own, and how long its primitives take.
//!
//!     cargo run --release -p offload-chain --example group_latency [members] [rounds]

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offload_chain::group::tcp::{MemberServer, TcpClient};
use offload_chain::group::{
    Durability, GroupMemory, GroupShape, Member, MemberConfig, MemberMap, Primitive,
    PrimitiveError, Primitives,
};
use offload_chain::persist::{Domain, EmulatedPm};
use softrdma::{BackingId, Config, ProtectionDomain, RegionTable, Time};

const SIZE: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let number = |at: usize, or: usize| {
        let given = std::env::args().nth(at);
        given.map_or(Ok(or), |given| given.parse())
    };
    let (members, rounds) = (number(1, 3)?, number(2, 2000)?);
    let shape = GroupShape::new(*b"only on loopback", 1, members, SIZE);
    let link = Config {
        private_profile: true,
        ..Config::default()
    };
    let bind = |_| TcpListener::bind("127.0.0.1:0");
    let listeners = (0..members).map(bind).collect::<Result<Vec<_>, _>>()?;
    let addresses: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
    let addresses = addresses?;
    let end = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for (member, listener) in listeners.into_iter().enumerate() {
        let config = MemberConfig {
            shape,
            member,
            memory: GroupMemory::Pages {
                backing: BackingId(0),
                offset: 0,
            },
            domains: [ProtectionDomain(1), ProtectionDomain(2)],
            link: link.clone(),
            reads: None,
            planted: None,
        };
        let pm = EmulatedPm::new(Domain::Dmp, SIZE as usize);
        let table = RegionTable::new([member as u8; 32]);
        let member = Member::new(config, pm, &table, Time(0))?;
        let mut server = MemberServer::new(member, listener, &addresses)?;
        let end = Arc::clone(&end);
        threads.push(std::thread::spawn(move || server.run(&end)));
    }
    let mut client = TcpClient::connect(shape, 0, &addresses, &link, [9; 32], LONG)?;

    let write = |bytes, durability| Primitive::Write {
        offset: 4096,
        bytes: vec![7; bytes],
        durability,
    };
    let copy = |length| Primitive::Memcpy {
        source: 4096,
        destination: 65_536,
        length,
        durability: Durability::Visible,
    };
    let cas = Primitive::Cas {
        offset: 0,
        old: 0,
        new: 0,
        execute: MemberMap::first(members),
        durability: Durability::Visible,
    };
    println!("{members} members, {rounds} rounds, microseconds");
    println!(
        "{:24} {:>8} {:>8} {:>8} {:>12}",
        "", "median", "p95", "p99", "pipelined/s"
    );
    for (name, primitive) in [
        ("gWRITE 128 B", write(128, Durability::Visible)),
        ("gWRITE 1 KiB", write(1024, Durability::Visible)),
        ("gWRITE 8 KiB", write(8192, Durability::Visible)),
        ("gWRITE 1 KiB + gFLUSH", write(1024, Durability::Durable)),
        ("gMEMCPY 1 KiB", copy(1024)),
        ("gCAS", cas),
        ("gFLUSH", Primitive::Flush),
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            client.post(primitive.clone())?;
            client.wait(LONG)?.ok_or("no outcome")?.1?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        let begun = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < rounds {
            while posted < rounds {
                match client.post(primitive.clone()) {
                    Ok(_) => posted += 1,
                    Err(PrimitiveError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            client.wait(LONG)?.ok_or("no outcome")?.1?;
            done += 1;
        }
        let rate = rounds as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{name:24} {:8.1} {:8.1} {:8.1} {rate:12.0}",
            at(50),
            at(95),
            at(99)
        );
    }
    end.store(true, Ordering::Release);
    drop(client);
    for thread in threads {
        thread.join().map_err(|_| "a member panicked")??;
    }
    Ok(())
}
