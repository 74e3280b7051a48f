//! The rules of the protocol as a suite: RFC 5040, 5041, 5044, 6581, 7306 and our private profile.
//!
//! A rule is a function over a [`Ctx`](harness::Ctx), which makes endpoints whose input is cut adversarially: it runs
//! with whole deliveries, byte by byte, with one cut at every single byte of a short stream, with random cuts of a long
//! one, and with what a TCP socket returns of random pieces. What is written down as bytes and expected frames runs over a
//! socket in both directions, too. And each planted bug (M12) must be noticed by some rule.

#![allow(unreachable_pub)]

mod common;
mod conformance {
    pub mod access;
    pub mod harness;
    pub mod ordering;
    pub mod planted;
    pub mod private;
    pub mod requester;
    pub mod tcp;
    pub mod terminate;
}

use conformance::harness::{Ctx, Cut, Rule};
use conformance::{access, ordering, private, requester, terminate};

/// All rules.
fn rules() -> Vec<Rule> {
    [
        terminate::RULES,
        ordering::RULES,
        private::RULES,
        requester::RULES,
        access::RULES,
    ]
    .concat()
}

/// Streams up to this long are cut at every byte.
const SHORT: usize = 1500;

fn exhaust(rules: &[Rule]) {
    for &(name, rule) in rules {
        let run = |cut| {
            let mut ctx = Ctx::new(cut, None);
            println!("{name}: {cut:?}");
            rule(&mut ctx);
            ctx.longest()
        };
        let longest = run(Cut::Whole);
        run(Cut::Bytes);
        if longest <= SHORT {
            for at in 1..longest {
                run(Cut::At(at));
            }
        }
        for seed in 0..20 {
            run(Cut::Random(seed));
            run(Cut::Tcp(seed));
        }
    }
}

#[test]
fn terminate_table() {
    exhaust(terminate::RULES);
}

#[test]
fn access_matrix() {
    // Some ten thousand streams; those that matter are cut in the rules above.
    for &(name, rule) in access::RULES {
        for cut in [Cut::Whole, Cut::Bytes, Cut::Tcp(1)] {
            println!("{name}: {cut:?}");
            rule(&mut Ctx::new(cut, None));
        }
    }
}

#[test]
fn ordering_table() {
    exhaust(ordering::RULES);
}

#[test]
fn private_profile() {
    exhaust(private::RULES);
}

#[test]
fn requesters() {
    exhaust(requester::RULES);
}

#[test]
fn over_tcp() {
    conformance::tcp::run_all();
}

#[test]
fn every_planted_bug_is_noticed() {
    conformance::planted::run_all(&rules());
}
