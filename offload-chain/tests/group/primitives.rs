//! Each primitive, alone, on groups of every size and both topologies.

use offload_chain::group::{
    Durability, MemberMap, Outcome, Primitive, PrimitiveError, Primitives, Topology,
};

use super::world::{Kind, World, shape};

fn write(offset: u64, bytes: &[u8], durability: Durability) -> Primitive {
    Primitive::Write {
        offset,
        bytes: bytes.to_vec(),
        durability,
    }
}

fn everywhere(test: impl Fn(World)) {
    for topology in [Topology::Chain, Topology::Star] {
        for members in [1, 2, 3, 5, 16] {
            for kind in [Kind::Memory, Kind::Pm { late: 0 }, Kind::Pm { late: 60 }] {
                println!("{topology:?} {members} {kind:?}");
                let mut shape = shape(members);
                shape.topology = topology;
                test(World::new(shape, kind, 1, 7, None));
            }
        }
    }
}

#[test]
fn gwrite_reaches_all() {
    everywhere(|mut world| {
        for (turn, len) in [1, 8, 100, 4096, 10_000, 32 << 10].into_iter().enumerate() {
            let bytes = vec![turn as u8 + 1; len];
            let at = 1000 + turn as u64;
            let done = world.call(0, write(at, &bytes, Durability::Visible));
            assert_eq!(done, Ok(Outcome::Done));
            for member in 0..world.shape.members {
                assert!(world.bytes(member, at, len) == bytes);
                assert_eq!(world.bytes(member, at - 1, 1).len(), 1);
            }
        }
        let none = world.call(0, write(5, b"", Durability::Visible));
        assert_eq!(none, Ok(Outcome::Done));
    });
}

/// gCAS runs where its map says, tells what each member had, and can be undone by the map of those that did it.
#[test]
fn gcas_and_its_undoing() {
    everywhere(|mut world| {
        let members = world.shape.members;
        let all = MemberMap::first(members);
        let cas = |old, new, execute| Primitive::Cas {
            offset: 64,
            old,
            new,
            execute,
            durability: Durability::Visible,
        };
        // Somebody has it at the last member.
        let last = MemberMap::one(members - 1);
        let had = world.call(0, cas(0, 7, last)).unwrap();
        let mut expected = vec![None; members];
        expected[members - 1] = Some(0);
        assert_eq!(had, Outcome::Cas(expected));

        let had = world.call(0, cas(0, 9, all)).unwrap();
        let mut expected = vec![Some(0); members];
        expected[members - 1] = Some(7);
        assert_eq!(had, Outcome::Cas(expected));
        let won = all.without(last);
        let had = world.call(0, cas(9, 0, won)).unwrap();
        let mut expected = vec![Some(9); members];
        expected[members - 1] = None;
        assert_eq!(had, Outcome::Cas(expected));
        for member in 0..members {
            let value = if member == members - 1 { 7_u64 } else { 0 };
            assert_eq!(world.bytes(member, 64, 8), value.to_le_bytes());
        }
    });
}

#[test]
fn gmemcpy_copies_on_all() {
    everywhere(|mut world| {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        world
            .call(0, write(100, &bytes, Durability::Visible))
            .unwrap();
        let copy = |source, destination, length| Primitive::Memcpy {
            source,
            destination,
            length,
            durability: Durability::Visible,
        };
        assert_eq!(world.call(0, copy(100, 30_001, 20_000)), Ok(Outcome::Done));
        assert_eq!(world.call(0, copy(101, 3, 0)), Ok(Outcome::Done));
        for member in 0..world.shape.members {
            assert!(world.bytes(member, 30_001, 20_000) == bytes);
            assert_eq!(world.bytes(member, 50_001, 1), [0]);
        }
    });
}

#[test]
fn one_sided_reads_of_any_member() {
    everywhere(|mut world| {
        world
            .call(0, write(4090, b"read me, please", Durability::Visible))
            .unwrap();
        for member in 0..world.shape.members {
            let read = Primitive::Read {
                member,
                offset: 4093,
                length: 7,
            };
            let bytes = world.call(0, read).unwrap();
            assert_eq!(bytes, Outcome::Read(b"d me, p".to_vec()));
        }
    });
}

/// gFLUSH makes durable what was visible, and durable primitives need none; on memory neither can be had (I1).
#[test]
fn gflush_alone_and_interleaved() {
    everywhere(|mut world| {
        if world.kind == Kind::Memory {
            let refused = Err(PrimitiveError::Invalid("the members do not persist"));
            assert_eq!(world.call(0, Primitive::Flush), refused);
            assert_eq!(world.call(0, write(0, b"x", Durability::Durable)), refused);
            return;
        }
        world
            .call(0, write(10, b"visible", Durability::Visible))
            .unwrap();
        world
            .call(0, write(9000, b"durable", Durability::Durable))
            .unwrap();
        let members = world.shape.members;
        for member in 0..members {
            assert_eq!(world.after_cut(member, 9000, 7), b"durable");
            assert_eq!(world.after_cut(member, 10, 7), [0; 7]);
        }
        assert_eq!(world.call(0, Primitive::Flush), Ok(Outcome::Done));
        let cas = Primitive::Cas {
            offset: 20_000,
            old: 0,
            new: 5,
            execute: MemberMap::first(members),
            durability: Durability::Durable,
        };
        world.call(0, cas).unwrap();
        let copy = Primitive::Memcpy {
            source: 10,
            destination: 30_000,
            length: 7,
            durability: Durability::Durable,
        };
        world.call(0, copy).unwrap();
        for member in 0..members {
            assert_eq!(world.after_cut(member, 10, 7), b"visible");
            assert_eq!(world.after_cut(member, 20_000, 8), 5_u64.to_le_bytes());
            assert_eq!(world.after_cut(member, 30_000, 7), b"visible");
        }
        assert_eq!(world.call(0, Primitive::Flush), Ok(Outcome::Done));
    });
}

/// What does not fit is refused where it is posted, and nothing happens.
#[test]
fn what_cannot_be_is_refused() {
    let mut world = World::new(shape(2), Kind::Memory, 1, 7, None);
    let size = world.shape.size;
    let cas = |offset, execute| Primitive::Cas {
        offset,
        old: 0,
        new: 1,
        execute,
        durability: Durability::Visible,
    };
    let copy = |source, destination, length| Primitive::Memcpy {
        source,
        destination,
        length,
        durability: Durability::Visible,
    };
    let read = |member, offset| Primitive::Read {
        member,
        offset,
        length: 8,
    };
    let all = MemberMap::first(2);
    for bad in [
        write(size, b"x", Durability::Visible),
        write(u64::MAX, b"xx", Durability::Visible),
        write(0, &[0; (32 << 10) + 1], Durability::Visible),
        cas(4, all),
        cas(size, all),
        cas(0, MemberMap(4)),
        copy(0, 7, 8),
        copy(7, 0, 8),
        copy(size - 1, 0, 2),
        copy(0, 16, u64::MAX),
        read(2, 0),
        read(0, size - 7),
    ] {
        let refused = world.call(0, bad.clone());
        assert!(
            matches!(refused, Err(PrimitiveError::Invalid(_))),
            "{bad:?}"
        );
    }
    assert_eq!(
        world.call(0, cas(0, all)),
        Ok(Outcome::Cas(vec![Some(0); 2]))
    );
    assert_eq!(world.client(0).members(), 2);
    assert_eq!(world.client(0).size(), size);
}
