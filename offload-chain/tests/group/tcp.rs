//! Groups over TCP: every member's engine in a thread of its own, nobody else there. Defends I13 and I1 through the real driver.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use offload_chain::group::file::FilePages;
use offload_chain::group::tcp::{MemberServer, TcpClient};
use offload_chain::group::{
    Durability, Flight, GroupMemory, GroupShape, Member, MemberConfig, MemberMap, Outcome,
    Primitive, PrimitiveError, Primitives, Topology,
};
use softrdma::{BackingId, Config, ProtectionDomain, RegionTable, Time};

const LONG: Duration = Duration::from_secs(60);

fn link() -> Config {
    Config {
        private_profile: true,
        ..Config::default()
    }
}

struct Group {
    shape: GroupShape,
    /// The addresses of each member.
    places: Vec<Vec<SocketAddr>>,
    ends: Vec<Arc<AtomicBool>>,
    threads: Vec<JoinHandle<()>>,
}

fn serve(shape: GroupShape, dir: &Path) -> Group {
    serve_at(&[], shape, dir)
}

/// Each member's name has these addresses, too, before its own.
fn serve_at(others: &[SocketAddr], shape: GroupShape, dir: &Path) -> Group {
    let bind = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: Vec<_> = (0..shape.members).map(bind).collect();
    let own = |listener: &TcpListener| listener.local_addr().unwrap();
    let place = |listener| [others, &[own(listener)]].concat();
    let places: Vec<_> = listeners.iter().map(place).collect();
    let mut group = Group {
        shape,
        places: places.clone(),
        ends: Vec::new(),
        threads: Vec::new(),
    };
    for (number, listener) in listeners.into_iter().enumerate() {
        let end = Arc::new(AtomicBool::new(false));
        group.ends.push(Arc::clone(&end));
        let (places, path) = (places.clone(), dir.join(number.to_string()));
        group.threads.push(std::thread::spawn(move || {
            let waker = Arc::new(OnceLock::<Arc<mio::Waker>>::new());
            let wake = Arc::clone(&waker);
            let pages = FilePages::open(
                &path,
                shape.size,
                Box::new(move || {
                    if let Some(waker) = wake.get() {
                        let _ = waker.wake();
                    }
                }),
            )
            .unwrap();
            let config = MemberConfig {
                shape,
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
            let mut server = MemberServer::new(member, listener, &slices(&places)).unwrap();
            waker.set(server.waker().unwrap()).unwrap();
            server.run(&end).unwrap();
        }));
    }
    group
}

fn slices(places: &[Vec<SocketAddr>]) -> Vec<&[SocketAddr]> {
    places.iter().map(Vec::as_slice).collect()
}

impl Group {
    fn client(&self, number: u16) -> TcpClient {
        let seed = [number as u8; 32];
        TcpClient::connect(
            self.shape,
            number,
            &slices(&self.places),
            &link(),
            seed,
            LONG,
        )
        .unwrap()
    }

    fn stop(self) {
        for end in &self.ends {
            end.store(true, Ordering::Release);
        }
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn outcome(client: &mut TcpClient) -> (Flight, Result<Outcome, PrimitiveError>) {
    client
        .wait(LONG)
        .unwrap()
        .expect("an outcome within a minute")
}

fn call(client: &mut TcpClient, primitive: Primitive) -> Outcome {
    let flight = client.post(primitive).unwrap();
    let (done, outcome) = outcome(client);
    assert_eq!(done, flight);
    outcome.unwrap()
}

/// A name may have addresses at which a member does not listen, as `localhost` has one of IPv6: the others are tried (I16).
#[test]
fn a_member_is_found_at_any_of_its_addresses() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = nobody.local_addr().unwrap();
    drop(nobody);
    let dir = tempfile::tempdir().unwrap();
    let shape = GroupShape::new([9; 16], 1, 3, 1 << 20);
    let group = serve_at(&[dead], shape, dir.path());
    let mut client = group.client(0);
    let write = Primitive::Write {
        offset: 0,
        bytes: vec![1; 5000],
        durability: Durability::Visible,
    };
    call(&mut client, write);
    drop(client);
    group.stop();
}

/// Who is in no hurry may wait for ever.
#[test]
fn waits_without_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let shape = GroupShape::new([9; 16], 1, 2, 1 << 20);
    let group = serve(shape, dir.path());
    let (places, forever) = (slices(&group.places), Duration::MAX);
    let client = TcpClient::connect(shape, 0, &places, &link(), [3; 32], forever);
    let mut client = client.unwrap();
    let flush = Primitive::Flush;
    let flight = client.post(flush).unwrap();
    let (done, outcome) = client.wait(forever).unwrap().expect("an outcome");
    assert!(done == flight && outcome.is_ok(), "{outcome:?}");
    drop(client);
    group.stop();
}

/// Two clients, pipelined, all primitives; then files hold what the model holds.
#[test]
fn primitives_over_tcp_on_files() {
    for (topology, members) in [
        (Topology::Chain, 3),
        (Topology::Star, 4),
        (Topology::Chain, 1),
        (Topology::Chain, 16),
        (Topology::Star, 16),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let shape = GroupShape {
            topology,
            ..GroupShape::new([9; 16], 3, members, 1 << 20)
        };
        let group = serve(shape, dir.path());
        let mut clients = [group.client(0), group.client(1)];
        let all = MemberMap::first(members);
        for (number, client) in clients.iter_mut().enumerate() {
            let base = number as u64 * (512 << 10);
            let mut under_way = 0;
            for turn in 0..300_u64 {
                let durability = if turn % 50 == 0 {
                    Durability::Durable
                } else {
                    Durability::Visible
                };
                let primitive = match turn % 3 {
                    0 => Primitive::Write {
                        offset: base + 4096 + turn * 100,
                        bytes: vec![turn as u8; 5000],
                        durability,
                    },
                    1 => Primitive::Cas {
                        offset: base,
                        old: turn / 3,
                        new: turn / 3 + 1,
                        execute: all,
                        durability,
                    },
                    _ => Primitive::Memcpy {
                        source: base + 4096 + turn * 100,
                        destination: base + (256 << 10),
                        length: 20_000,
                        durability,
                    },
                };
                loop {
                    match client.post(primitive.clone()) {
                        Ok(_) => break under_way += 1,
                        Err(PrimitiveError::Full) => {
                            assert!(outcome(client).1.is_ok());
                            under_way -= 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            for _ in 0..under_way {
                assert!(outcome(client).1.is_ok());
            }
            let last = Primitive::Cas {
                offset: base,
                old: 100,
                new: 1000,
                execute: all,
                durability: Durability::Visible,
            };
            assert_eq!(call(client, last), Outcome::Cas(vec![Some(100); members]));
            assert_eq!(call(client, Primitive::Flush), Outcome::Done);
        }
        for member in 0..members {
            let read = Primitive::Read {
                member,
                offset: 0,
                length: 8,
            };
            let bytes = 1000_u64.to_le_bytes().to_vec();
            assert_eq!(call(&mut clients[0], read), Outcome::Read(bytes));
        }
        drop(clients);
        group.stop();
        let first = std::fs::read(dir.path().join("0")).unwrap();
        assert!(first.iter().any(|&byte| byte != 0));
        for member in 1..members {
            let other = std::fs::read(dir.path().join(member.to_string())).unwrap();
            assert!(first == other, "member {member} differs (I15)");
        }
    }
}

/// When a member goes, clients hear of it and nothing hangs.
#[test]
fn a_member_that_goes_breaks_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let shape = GroupShape::new([9; 16], 3, 3, 1 << 16);
    let group = serve(shape, dir.path());
    let mut client = group.client(0);
    let write = |turn: u8| Primitive::Write {
        offset: 0,
        bytes: vec![turn; 100],
        durability: Durability::Durable,
    };
    assert_eq!(call(&mut client, write(1)), Outcome::Done);
    group.ends[1].store(true, Ordering::Release);
    let broken = loop {
        match client.post(write(2)) {
            Ok(_) => {
                if let (_, Err(error)) = outcome(&mut client) {
                    break error;
                }
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(broken, PrimitiveError::Broken(_)), "{broken}");
    group.stop();
}
