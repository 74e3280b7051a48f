//! The chain that others are measured against does the same as a group (or a comparison with it would say nothing).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use offload_chain::group::{Durability, MemberMap, Outcome, Primitive, PrimitiveError, Primitives};
use offload_chain::naive::{NaiveMember, NaiveServer, NaiveTcpClient, Wait};
use softrdma::{Buffer, Config};

const SIZE: usize = 1 << 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` with a client of a chain of so many members, and with their memories.
fn with_chain(members: usize, wait: Wait, work: impl FnOnce(NaiveTcpClient, &[Arc<Buffer>])) {
    let listeners: Vec<_> = (0..members)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses: Vec<SocketAddr> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut memories = Vec::new();
        for (number, listener) in listeners.into_iter().enumerate() {
            let member = NaiveMember::new(Config::default(), [number as u8; 32], SIZE).unwrap();
            memories.push(Arc::clone(member.memory()));
            let application = member.application(number, members);
            scope.spawn(move || application.run(wait));
            let next = addresses.get(number + 1).copied();
            let mut server = NaiveServer::new(member, listener, next).unwrap();
            let end = &end;
            scope.spawn(move || server.run(end).unwrap());
        }
        let to = (&addresses[..], SIZE as u64);
        let client = NaiveTcpClient::connect(&Config::default(), 7, to, [9; 32], PATIENCE);
        work(client.unwrap(), &memories);
        end.store(true, Ordering::Release);
    });
}

fn run(client: &mut NaiveTcpClient, primitive: Primitive) -> Outcome {
    let flight = client.post(primitive).unwrap();
    loop {
        if let Some((of, outcome)) = client.poll() {
            assert_eq!(of, flight);
            return outcome.unwrap();
        }
        client.turn(PATIENCE).unwrap();
    }
}

/// gWRITE, gMEMCPY, gCAS with an execute map, and READ, as a group does them; and what it can not do is refused.
#[test]
fn primitives() {
    const VISIBLE: Durability = Durability::Visible;
    for (members, wait) in [(1, Wait::Event), (3, Wait::Event), (2, Wait::Polling)] {
        with_chain(members, wait, |mut client, memories| {
            assert_eq!(client.members(), members);
            let write = |offset, bytes: &[u8], durability| Primitive::Write {
                offset,
                bytes: bytes.to_vec(),
                durability,
            };
            let done = run(&mut client, write(100, b"in a chain", VISIBLE));
            assert_eq!(done, Outcome::Done);
            let copy = Primitive::Memcpy {
                source: 103,
                destination: 4000,
                length: 7,
                durability: VISIBLE,
            };
            assert_eq!(run(&mut client, copy), Outcome::Done);
            let cas = |old, new, execute| Primitive::Cas {
                offset: 64,
                old,
                new,
                execute,
                durability: VISIBLE,
            };
            let last = MemberMap::one(members - 1);
            let had = run(&mut client, cas(0, 5, last));
            let mut expected = vec![None; members];
            expected[members - 1] = Some(0);
            assert_eq!(had, Outcome::Cas(expected));
            let all = MemberMap::first(members);
            let mut expected = vec![Some(0); members];
            expected[members - 1] = Some(5);
            assert_eq!(run(&mut client, cas(0, 6, all)), Outcome::Cas(expected));
            for (member, memory) in memories.iter().enumerate() {
                assert_eq!(memory.to_vec(100, 10), b"in a chain");
                assert_eq!(memory.to_vec(4000, 7), b"a chain");
                let read = Primitive::Read {
                    member,
                    offset: 64,
                    length: 8,
                };
                let word = if member + 1 == members { 5u64 } else { 6 };
                let bytes = word.to_le_bytes().to_vec();
                assert_eq!(run(&mut client, read), Outcome::Read(bytes));
            }
            for wrong in [
                write(SIZE as u64 - 1, b"ab", VISIBLE),
                write(0, b"ab", Durability::Durable),
                Primitive::Flush,
            ] {
                let refused = client.post(wrong);
                assert!(
                    matches!(refused, Err(PrimitiveError::Invalid(_))),
                    "{refused:?}"
                );
            }
        });
    }
}

/// Many at once come back in order, each once.
#[test]
fn pipelined() {
    with_chain(3, Wait::Event, |mut client, memories| {
        let (mut posted, mut answered) = (Vec::new(), Vec::new());
        for n in 0..500u64 {
            let write = Primitive::Write {
                offset: n * 8,
                bytes: n.to_le_bytes().to_vec(),
                durability: Durability::Visible,
            };
            loop {
                match client.post(write.clone()) {
                    Ok(flight) => break posted.push(flight),
                    Err(PrimitiveError::Full) => client.turn(PATIENCE).unwrap(),
                    Err(error) => panic!("{error}"),
                }
                answered.extend(std::iter::from_fn(|| client.poll()).map(|(flight, _)| flight));
            }
        }
        while answered.len() < posted.len() {
            client.turn(PATIENCE).unwrap();
            answered.extend(std::iter::from_fn(|| client.poll()).map(|(flight, _)| flight));
        }
        assert_eq!(answered, posted);
        let expected: Vec<u8> = (0..500u64).flat_map(u64::to_le_bytes).collect();
        for memory in memories {
            assert!(memory.to_vec(0, 4000) == expected);
        }
    });
}
