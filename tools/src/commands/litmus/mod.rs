//! `flashnet litmus`: what local and remote programs see of each other's stores, tried out on a real target.
//!
//! A litmus test is a few loads and stores by two parties and an outcome that a memory must not show. Parties reach
//! one file by calls on the mount, through a shared mapping of it, or by one-sided operations. The tests are those of
//! the literature on memory models, with "becomes visible" where a processor has a fence: what a party does so that
//! its stores count as acknowledged ([`Party::publish`]).

mod file;
mod party;
mod report;
mod shape;
mod step;

use anyhow::{Result, bail};

use self::file::SharedFile;
use self::party::Way;
use self::report::Report;
use self::shape::Shape;
use super::interrupt::Interrupt;
use crate::cli;

/// Who stores and who looks, for tests in which the two do different things.
const DIRECTED: [(Way, Way); 7] = [
    (Way::Calls, Way::Remote),
    (Way::Remote, Way::Calls),
    (Way::Mapping, Way::Remote),
    (Way::Remote, Way::Mapping),
    (Way::Mapping, Way::Calls),
    (Way::Calls, Way::Mapping),
    (Way::Remote, Way::Remote),
];
/// The same for what happens when a page is mapped for the first time.
const FAULTED: [(Way, Way); 2] = [(Way::Remote, Way::Mapping), (Way::Calls, Way::Mapping)];
/// The same for tests in which both do the same.
const UNDIRECTED: [(Way, Way); 4] = [
    (Way::Calls, Way::Remote),
    (Way::Mapping, Way::Remote),
    (Way::Mapping, Way::Calls),
    (Way::Remote, Way::Remote),
];

/// Runs the command.
pub(super) fn run(options: &cli::Litmus, json: bool) -> Result<()> {
    let interrupt = Interrupt::install()?;
    contigfs::fuse::available()?;
    // SAFETY: the call has no arguments and cannot fail.
    if options.share_pages && unsafe { libc::geteuid() } != 0 {
        bail!("only root may share pages with those who map a file (it takes CAP_SYS_ADMIN)");
    }
    let file = SharedFile::serve(options, &interrupt)?;
    let mut report = Report::default();
    let mut place = 0;
    for shape in Shape::ALL {
        let pairs: &[(Way, Way)] = match shape {
            Shape::FirstFault => &FAULTED,
            shape if shape.is_directed() => &DIRECTED,
            _ => &UNDIRECTED,
        };
        for &pair in pairs {
            let outcome = shape.run(&file, pair, place, u64::from(options.rounds));
            let outcome = interrupt.settle(outcome)?;
            interrupt.check()?;
            report.add(shape, pair, outcome);
            place += 1;
        }
    }
    file.end()?;
    if json {
        println!("{}", report.json());
    } else if options.markdown {
        print!("{}", report.markdown());
    } else {
        println!("{}", report.table());
    }
    let faults = report.faults();
    if !faults.is_empty() {
        bail!("the contract is broken: {}", faults.join("; "));
    }
    Ok(())
}
