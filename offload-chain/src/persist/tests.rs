//! Defends I1 as far as remote persistence goes: what was said to be durable is there after any cut, and a second
//! change never without the first. Bugs planted in recipes and in the emulated responder are found (M12).

use std::collections::HashSet;

use super::model::Planted;
use super::*;
use RecipeId::*;

const PROFILE: Peer = Peer::Endpoint(Offer::IMMEDIATE.union(Offer::PROFILE));
const SYNC: Peer = Peer::Endpoint(Offer::IMMEDIATE.union(Offer::SYNC_STAG));
/// FLUSH covers receive buffers too.
const PROFILE_ALL: Peer = Peer::Endpoint(
    Offer::IMMEDIATE
        .union(Offer::PROFILE)
        .union(Offer::FLUSH_RECEIVES),
);
const PEERS: [Peer; 9] = [
    Peer::Rdma,
    Peer::IwarpNic { in_order: false },
    Peer::IwarpNic { in_order: true },
    Peer::Siw,
    Peer::Endpoint(Offer::empty()),
    Peer::Endpoint(Offer::IMMEDIATE),
    SYNC,
    PROFILE,
    PROFILE_ALL,
];

const fn config(domain: Domain, ddio: Ddio, receive_queue: ReceiveQueue) -> Config {
    Config {
        domain,
        ddio,
        receive_queue,
    }
}

const DMP_ON: Config = config(Domain::Dmp, Ddio::On, ReceiveQueue::Pm);
const DMP_OFF: Config = config(Domain::Dmp, Ddio::Off, ReceiveQueue::Pm);
const MHP: Config = config(Domain::Mhp, Ddio::On, ReceiveQueue::Pm);
const WSP: Config = config(Domain::Wsp, Ddio::On, ReceiveQueue::Pm);

fn update(recipe: &Recipe) -> Update {
    if recipe.is_compound() {
        Update::TAIL_POINTER
    } else {
        Update::Singleton
    }
}

fn examine(recipe: &Recipe, config: Config, peer: Peer) -> Verdict {
    let update = update(recipe);
    Prover::new().examine(recipe, config, update, peer).clone()
}

/// The rules plan what the paper prints, in all 72 cells; and each is proven against all other recipes.
#[test]
fn the_printed_tables_are_proven() {
    let mut prover = Prover::new();
    for scenario in Scenario::all() {
        let proof = prover
            .prove(scenario, Peer::Rdma)
            .unwrap_or_else(|why| panic!("{scenario}: {why}"));
        assert_eq!(proof.recipe.id, printed(scenario), "{scenario}");
        let all = catalogue::recipes().filter(|recipe| recipe.is_for(scenario.update));
        let count = all.filter(|recipe| recipe.id != C4Wait).count();
        assert!(proof.weaker.len() + proof.others.len() + 1 >= count);
        // Neither a search that sees nothing nor one that cannot be afforded.
        assert!((10..5_000).contains(&proof.evidence.cuts), "{proof}");
    }
    let all = prover.evidence();
    assert!(all.cuts > 1_000 && all.restarts > 100, "{all:?}");
}

/// The same for every kind of peer, where there is a recipe at all; and nothing else is refused than WRITE_IMM.
#[test]
fn other_peers_are_proven() {
    for peer in PEERS {
        let mut prover = Prover::new();
        for scenario in Scenario::all() {
            match prover.prove(scenario, peer) {
                Ok(_) => {}
                Err(Unproven::Refused(Refusal::NoImmediate(of))) => {
                    assert_eq!((of, scenario.primary), (peer, Primary::WriteImm));
                    assert!(!peer.has_immediate());
                }
                Err(why) => panic!("{peer}, {scenario}: {why}"),
            }
        }
    }
}

/// Second changes that an ATOMIC WRITE does not carry.
#[test]
fn other_tails_are_proven() {
    for (peer, tail_bytes) in PEERS
        .into_iter()
        .flat_map(|p| [4, 9].map(|bytes| (p, bytes)))
    {
        let update = Update::Compound { tail_bytes };
        let mut prover = Prover::new();
        for (config, primary) in Config::all().flat_map(|c| Primary::ALL.map(|p| (c, p))) {
            let scenario = Scenario {
                update,
                config,
                primary,
            };
            match prover.prove(scenario, peer) {
                Ok(proof) => assert_ne!(proof.recipe.id, C4),
                Err(Unproven::Refused(Refusal::NoImmediate(_))) => {}
                Err(why) => panic!("{peer}, {scenario}: {why}"),
            }
        }
    }
    for tail_bytes in [0, 4, 7, 9] {
        let update = Update::Compound { tail_bytes };
        let refused = admit(&recipe_named(C4), DMP_OFF, update, Peer::Rdma);
        assert_eq!(refused, Err(Refusal::NotAtomic(tail_bytes)));
    }
}

/// A responder that has everything and acknowledges what it is asked to.
#[derive(Debug, Default)]
struct Obliging {
    posted: u64,
    acknowledged: u64,
}

impl Transport for Obliging {
    type Error = std::convert::Infallible;

    fn post(&mut self, request: Request<'_>) -> Result<Posted, TransportError<Self::Error>> {
        match request {
            Request::WriteImm { immediate, .. } => self.acknowledged = immediate,
            Request::Send { message } => {
                self.acknowledged = message::Message::parse(message).unwrap().sequence;
            }
            _ => {}
        }
        self.posted += 1;
        Ok(Posted(self.posted))
    }

    fn wait(&mut self, _: Posted) -> Result<(), Self::Error> {
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>, Self::Error> {
        Ok(message::Message::acknowledgement(self.acknowledged).emit())
    }
}

/// What is planned for a second change can be carried out, however short or long that is (defends I1: an update that no
/// recipe takes never becomes durable).
#[test]
fn what_is_planned_can_be_run() {
    for (peer, tail_bytes) in PEERS
        .into_iter()
        .flat_map(|peer| (0..=17).map(move |tail_bytes| (peer, tail_bytes)))
    {
        let update = Update::Compound { tail_bytes };
        for (config, primary) in Config::all().flat_map(|c| Primary::ALL.map(|p| (c, p))) {
            let Ok(recipe) = plan(config, primary, update, peer) else {
                assert_eq!(primary, Primary::WriteImm);
                continue;
            };
            let changes = Changes {
                sequence: 1,
                a: Change {
                    at: 64,
                    bytes: &[1; 64],
                },
                b: Some(Change {
                    at: 0,
                    bytes: &[2; 17][..tail_bytes as usize],
                }),
            };
            let done = run(&recipe, &changes, &mut Obliging::default());
            done.unwrap_or_else(|why| panic!("{peer}, {config}, {recipe}: {why}"));
        }
    }
}

/// What peers other than RDMA hardware need, in the words of the notes.
#[test]
fn plans_depend_on_the_peer() {
    let name = |config, primary, update, peer| {
        plan(config, primary, update, peer).map(|recipe| recipe.name())
    };
    let compound = Update::TAIL_POINTER;
    let rows = [
        (DMP_ON, Primary::Write, PROFILE, "S4", "C4"),
        (DMP_ON, Primary::WriteImm, PROFILE, "S5", "C5"),
        (DMP_ON, Primary::Send, PROFILE, "S3", "C3"),
        (DMP_ON, Primary::Send, PROFILE_ALL, "S6", "C8"),
        (MHP, Primary::Send, PROFILE, "S6", "C8"),
        (WSP, Primary::Write, PROFILE, "S4", "C6"),
        (
            DMP_ON,
            Primary::Write,
            SYNC,
            "S4[sync READ(0)]",
            "C6[sync READ(0)]",
        ),
        (DMP_ON, Primary::Send, SYNC, "S3", "C3"),
        (MHP, Primary::Write, SYNC, "S4[READ(0)]", "C6[READ(0)]"),
        (DMP_OFF, Primary::Write, Peer::Siw, "S1", "C1"),
        (MHP, Primary::Send, Peer::Siw, "S6[READ(0)]", "C8[READ(0)]"),
        (WSP, Primary::Write, Peer::Siw, "S4[READ(0)]", "C6[READ(0)]"),
        (
            DMP_OFF,
            Primary::Write,
            Peer::IwarpNic { in_order: true },
            "S4[READ(1)]",
            "C4w[READ(1)]",
        ),
        (
            MHP,
            Primary::Write,
            Peer::IwarpNic { in_order: true },
            "S4[READ(1)]",
            "C6[READ(1)]",
        ),
        (
            MHP,
            Primary::Write,
            Peer::IwarpNic { in_order: false },
            "S4[READ(1)]",
            "C4w[READ(1)]",
        ),
        (
            DMP_ON,
            Primary::Write,
            Peer::IwarpNic { in_order: false },
            "S1",
            "C1",
        ),
    ];
    for (config, primary, peer, singleton, both) in rows {
        assert_eq!(
            name(config, primary, Update::Singleton, peer).unwrap(),
            singleton
        );
        assert_eq!(
            name(config, primary, compound, peer).unwrap(),
            both,
            "{config}, {peer}"
        );
    }
    let siw = name(MHP, Primary::WriteImm, compound, Peer::Siw);
    assert_eq!(siw, Err(Refusal::NoImmediate(Peer::Siw)));
}

/// Every rule refuses something; and what any rule but those about abilities refuses, the search shows to be wrong, for raw
/// recipes as for the forms that fit the peer.
#[test]
fn every_rule_is_used() {
    let mut reasons = HashSet::new();
    let updates = [
        Update::Singleton,
        Update::TAIL_POINTER,
        Update::Compound { tail_bytes: 9 },
    ];
    for (peer, config) in PEERS
        .into_iter()
        .flat_map(|p| Config::all().map(move |c| (p, c)))
    {
        let mut prover = Prover::new();
        let sync = |recipe: Recipe| recipe.in_form(Barrier::ReadNothing, Tag::Sync);
        let raw = catalogue::recipes().flat_map(|recipe| {
            let mut forms = peer.forms(&recipe);
            forms.extend([recipe.clone(), sync(recipe)]);
            forms
        });
        for (recipe, update) in raw.flat_map(|r| updates.map(|u| (r.clone(), u))) {
            let Err(refusal) = admit(&recipe, config, update, peer) else {
                continue;
            };
            assert!(refusal.to_string().len() > 20, "{refusal}");
            reasons.insert(std::mem::discriminant(&refusal));
            if plan::able(&recipe, update, peer).is_ok() {
                let verdict = prover.examine(&recipe, config, update, peer);
                assert!(!verdict.survives(), "{peer}, {config}: {recipe}: {refusal}");
            }
        }
    }
    assert_eq!(reasons.len(), 13);
}

/// Waiting for a WRITE or SEND is refused on iWARP in every configuration, and shown to be wrong.
#[test]
fn completions_prove_nothing_on_iwarp() {
    for id in [S8, S9, S10, C10, C11, C12] {
        let recipe = recipe_named(id);
        for peer in PEERS.into_iter().filter(|&peer| peer != Peer::Rdma) {
            for config in Config::all() {
                let refusal = admit(&recipe, config, update(&recipe), peer).unwrap_err();
                let expected = match refusal {
                    Refusal::NoImmediate(_) => recipe.primary() == Primary::WriteImm,
                    Refusal::ReceiveQueueIsLost => config.receive_queue == ReceiveQueue::Dram,
                    other => other == Refusal::CompletionIsLocal(peer),
                };
                assert!(expected, "{recipe}, {config}, {peer}");
                assert!(!examine(&recipe, config, peer).survives());
            }
        }
        assert!(examine(&recipe, WSP, Peer::Rdma).survives());
    }
}

/// Each step of a planned recipe that stands between the update and the word "durable" is needed: without it data are
/// lost or reordered, or nobody is ever told.
#[test]
fn every_step_is_needed() {
    for peer in PEERS {
        for scenario in Scenario::all() {
            let Ok(recipe) = scenario.plan(peer) else {
                continue;
            };
            for at in 0..recipe.requester.len() {
                let mut mutant = recipe.clone();
                let step = mutant.requester.remove(at);
                let verdict = examine(&mutant, scenario.config, peer);
                assert!(
                    !verdict.survives(),
                    "{peer}, {scenario}: {recipe} without {step}"
                );
            }
            // What comes after the acknowledgement, or replaces it, is looked at in `planted_in_recipes`.
            let steps = if recipe.is_acknowledged() {
                recipe.responder.len()
            } else {
                0
            };
            for at in 0..steps {
                let mut mutant = recipe.clone();
                let step = mutant.responder.remove(at);
                let verdict = examine(&mutant, scenario.config, peer);
                // A flush costs nothing to leave out where caches are kept, if the catalogue has no recipe without.
                let idle = matches!(step, ResponderStep::Flush(_))
                    && peer.domain(scenario.config) != Domain::Dmp;
                assert_eq!(
                    verdict.survives(),
                    idle,
                    "{peer}, {scenario}: {recipe} without {step}"
                );
            }
        }
    }
}

/// Bugs in recipes, each with the harm it must be found to do (M12).
#[test]
fn planted_in_recipes() {
    fn swapped(id: RecipeId, responder: &[(usize, usize)]) -> Recipe {
        let mut recipe = recipe_named(id);
        for &(a, b) in responder {
            recipe.responder.swap(a, b);
        }
        recipe
    }
    fn requester(id: RecipeId, change: impl Fn(&mut Vec<RequesterStep>)) -> Recipe {
        let mut recipe = recipe_named(id);
        change(&mut recipe.requester);
        recipe
    }
    let plain = RequesterStep::Write(Item::B, Tag::Plain);
    let forgetful = Recipe {
        recovery: Recovery::Nothing,
        ..recipe_named(S6)
    };
    let bugs = [
        (
            "S1 acknowledges before it flushes",
            swapped(S1, &[(1, 2)]),
            DMP_ON,
            Harm::Lost,
        ),
        (
            "S3 flushes before it copies",
            swapped(S3, &[(1, 2)]),
            DMP_ON,
            Harm::Lost,
        ),
        (
            "S6 releases before it flushes",
            swapped(S6, &[(2, 3)]),
            DMP_OFF,
            Harm::Lost,
        ),
        (
            "S6 releases before it copies",
            swapped(S6, &[(1, 3)]),
            MHP,
            Harm::Lost,
        ),
        ("S6 without replay", forgetful, DMP_OFF, Harm::Lost),
        (
            "C3 applies b first",
            swapped(C3, &[(1, 3), (2, 4)]),
            DMP_ON,
            Harm::Reordered,
        ),
        (
            "C3 flushes both at the end",
            swapped(C3, &[(2, 3)]),
            DMP_ON,
            Harm::Reordered,
        ),
        (
            "C9 copies b first",
            swapped(C9, &[(1, 2)]),
            MHP,
            Harm::Reordered,
        ),
        (
            "C1 does not wait for the first ack",
            requester(C1, |steps| {
                steps.remove(2);
            }),
            DMP_ON,
            Harm::Reordered,
        ),
        (
            "C4 with a plain WRITE of b, which overtakes the FLUSH",
            requester(C4, |steps| steps[2] = plain),
            DMP_OFF,
            Harm::Reordered,
        ),
        (
            "C5 does not wait for the first FLUSH",
            requester(C5, |steps| {
                steps.remove(2);
            }),
            DMP_OFF,
            Harm::Reordered,
        ),
        (
            "C6 writes b first",
            requester(C6, |steps| steps.swap(0, 1)),
            MHP,
            Harm::Reordered,
        ),
        (
            "C6 flushes before it writes b",
            requester(C6, |steps| steps.swap(1, 2)),
            MHP,
            Harm::Lost,
        ),
    ];
    for (name, recipe, config, harm) in bugs {
        match examine(&recipe, config, Peer::Rdma) {
            Verdict::Fails(found) => assert_eq!(found.harm, harm, "{name}:\n{found}"),
            Verdict::Survives(evidence) => panic!("{name} was not found: {evidence:?}"),
        }
        assert!(examine(&recipe_named(recipe.id), config, Peer::Rdma).survives());
    }
}

/// Bugs in the responder: each makes the proof of a cell fail that stands without it (M12).
#[test]
fn planted_in_the_responder() {
    let bugs = [
        (Planted::BusReorders, MHP, C6, Peer::Rdma),
        (Planted::FlushAnswersEarly, DMP_OFF, S4, Peer::Rdma),
        (Planted::FlushAnswersEarly, DMP_OFF, S6, Peer::Rdma),
        (Planted::AtomicOvertakesFlush, DMP_OFF, C4, Peer::Rdma),
        (Planted::AtomicOvertakesFlush, DMP_ON, C4, PROFILE),
        (
            Planted::ReceiveOvertakesWrites,
            DMP_ON,
            S1,
            Peer::IwarpNic { in_order: false },
        ),
        (Planted::FlushWithoutBarrier, DMP_ON, S3, Peer::Rdma),
        (Planted::SyncHoldsNothing, DMP_ON, C6, SYNC),
        (Planted::RecoveryReleasesEarly, DMP_OFF, C8, Peer::Rdma),
        (Planted::CachesAreKept, DMP_ON, S1, Peer::Rdma),
    ];
    for (planted, config, id, peer) in bugs {
        let recipe = recipe_named(id);
        let scenario = Scenario {
            update: update(&recipe),
            config,
            primary: recipe.primary(),
        };
        let sound = Prover::new().prove(scenario, peer).unwrap();
        assert_eq!(sound.recipe.id, id);
        let unproven = Prover::with(planted).prove(scenario, peer).unwrap_err();
        // A cut that keeps too much is found by a weaker recipe that it spares.
        let spared = matches!(unproven, Unproven::Survives { .. });
        assert_eq!(
            spared,
            planted == Planted::CachesAreKept,
            "{planted:?}: {unproven}"
        );
    }
}

/// The text of a counterexample: FLUSH leaves the record in the cache, where DMP loses it.
#[test]
fn counterexamples_can_be_read() {
    let Verdict::Fails(found) = examine(&recipe_named(S4), DMP_ON, Peer::Rdma) else {
        panic!("caches are lost under DMP")
    };
    let text = found.to_string();
    assert!(text.contains("requester: WRITE a\n"), "{text}");
    assert!(text.contains("a[0]: bus -> cache\n"), "{text}");
    assert!(text.contains("NIC answers FLUSH\n"), "{text}");
    assert!(
        text.ends_with(
            "POWER CUT leaves nothing; a reader finds nothing: said to be durable, and lost"
        ),
        "{text}"
    );
}

/// The same search finds the same way, state for state.
#[test]
fn searches_repeat() {
    let run = || {
        let mut prover = Prover::new();
        let proofs: Vec<String> = Scenario::all()
            .map(|scenario| prover.prove(scenario, Peer::Rdma).unwrap().to_string())
            .collect();
        (proofs, prover.evidence())
    };
    assert_eq!(run(), run());
}
