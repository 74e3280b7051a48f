//! One cell of the matrix: a program, the kernel's role, and the manner of its connections.

use std::collections::VecDeque;
use std::time::Duration;

use softrdma::Revision;

use super::super::manner::Manner;
use crate::cli::peer::{Fpdu, Program, Rtr};
use crate::siw::{HOST_IN_GUEST, Ran};

/// What the kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    Client,
    Server,
}

/// Revision and ready-to-receive frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Setup {
    One,
    Two(Rtr),
}

impl Setup {
    pub(super) const ALL: [Self; 4] = [
        Self::One,
        Self::Two(Rtr::None),
        Self::Two(Rtr::Write),
        Self::Two(Rtr::Read),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "rev 1",
            Self::Two(Rtr::None) => "rev 2",
            Self::Two(Rtr::Write) => "rev 2 RTR WRITE",
            Self::Two(Rtr::Read) => "rev 2 RTR READ",
            Self::Two(Rtr::Any) => "rev 2 RTR any",
        }
    }

    fn rtr(self) -> Rtr {
        match self {
            Self::One => Rtr::None,
            Self::Two(rtr) => rtr,
        }
    }

    /// Parameters of the driver and their values.
    pub(super) fn parameters(self, crc: bool) -> [(&'static str, u32); 4] {
        let revision = if self == Self::One { 1 } else { 2 };
        let kinds = match self.rtr() {
            Rtr::Write => 0x8000,
            Rtr::Read => 0x4000,
            Rtr::None | Rtr::Any => 0xc000,
        };
        [
            ("mpa_crc_required", u32::from(crc)),
            ("mpa_version", revision),
            ("peer_to_peer", u32::from(self.rtr() != Rtr::None)),
            ("rtr", kinds),
        ]
    }
}

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) program: Program,
    pub(super) kernel: Kernel,
    pub(super) fpdu: Fpdu,
    pub(super) crc: bool,
    pub(super) setup: Setup,
}

/// The rows of a program.
pub(super) const ROWS: [(Kernel, Fpdu); 4] = [
    (Kernel::Client, Fpdu::Small),
    (Kernel::Client, Fpdu::Large),
    (Kernel::Server, Fpdu::Small),
    (Kernel::Server, Fpdu::Large),
];

impl Cell {
    /// All cells that the same parameters of the driver serve; those that take longest first.
    pub(super) fn group(programs: &[Program], crc: bool, setup: Setup) -> VecDeque<Self> {
        let mut programs = programs.to_vec();
        programs.sort_by_key(|program| *program != Program::WriteBw);
        let cell = |program, (kernel, fpdu)| Self {
            program,
            kernel,
            fpdu,
            crc,
            setup,
        };
        let cells = programs
            .iter()
            .flat_map(|&program| ROWS.map(|row| cell(program, row)));
        cells.collect()
    }

    /// What our side does.
    pub(super) fn manner(&self, patience: Duration) -> Manner {
        Manner {
            crc: self.crc,
            revision: match self.setup {
                Setup::One => Revision::One,
                Setup::Two(_) => Revision::Two,
            },
            rtr: self.setup.rtr(),
            fpdu: self.fpdu,
            reads: 16,
            sends_first: false,
            patience,
        }
    }

    /// perftest wants five at least.
    pub(super) fn count(&self) -> usize {
        6
    }

    /// Several small frames; or few large ones.
    pub(super) fn size(&self) -> usize {
        match self.fpdu {
            Fpdu::Small => 1000,
            Fpdu::Mss | Fpdu::Large => 40_000,
        }
    }

    pub(super) fn connections(&self) -> usize {
        match self.program {
            Program::Cmatose => 3,
            _ => 1,
        }
    }

    /// As a responder to revision 1 the driver lets its program have no READs outstanding (ORD 0), so that the server of
    /// rping, which READs, has to end in an error. READs of the client are answered.
    pub(super) fn must_fail(&self) -> bool {
        self.setup == Setup::One && self.kernel == Kernel::Server && self.program == Program::Rping
    }

    /// What runs in the guest.
    pub(super) fn command(&self, port: u16, patience: Duration) -> String {
        let (count, size) = (self.count(), self.size());
        let is_client = self.kernel == Kernel::Client;
        let program = match self.program {
            Program::Rping => match is_client {
                true => format!("rping -c -a {HOST_IN_GUEST} -V -C {count} -S {size} -p {port}"),
                false => format!("rping -s -C {count} -S {size} -p {port}"),
            },
            Program::Cmatose => {
                let role = match is_client {
                    true => format!("-s {HOST_IN_GUEST}"),
                    false => "-b 10.0.2.15".to_owned(),
                };
                let connections = self.connections();
                format!("ucmatose {role} -p {port} -c {connections} -C {count} -S {size}")
            }
            Program::Rdma => match is_client {
                true => format!("rdma_client -s {HOST_IN_GUEST} -p {port}"),
                false => format!("rdma_server -p {port}"),
            },
            Program::WriteBw => perftest("ib_write_bw", count, size, port, is_client),
            Program::ReadBw => perftest("ib_read_bw", count, size, port, is_client),
            Program::SendBw => perftest("ib_send_bw", count, size, port, is_client),
            Program::Rstream => {
                let role = match is_client {
                    true => format!("-s {HOST_IN_GUEST}"),
                    false => "-b 10.0.2.15".to_owned(),
                };
                format!("rstream {role} -p {port} -I 1 -C {count} -S {size} -T b -T v")
            }
        };
        format!("timeout {} {program}", patience.as_secs().max(1))
    }

    /// What the program in the guest found wrong. Their exit statuses do not always say.
    pub(super) fn complaint(&self, ran: &Ran) -> Option<String> {
        let line = |signs: &[&str]| {
            let mut lines = ran.output.lines();
            lines.find(|line| signs.iter().any(|sign| line.contains(sign)))
        };
        let found = match (self.program, self.kernel) {
            // Its server always ends because the client has gone, and calls that an error.
            (Program::Rping, Kernel::Server) => line(&["mismatch", "bogus"]),
            (Program::Rping, Kernel::Client) => {
                line(&["mismatch", "wait for", "completion failed"])
            }
            (Program::Rstream, _) => line(&["verification failed"]),
            _ => None,
        };
        let judged_by_status = !matches!(
            (self.program, self.kernel),
            (Program::Rping, Kernel::Server)
        );
        found.map(str::to_owned).or_else(|| {
            (judged_by_status && ran.status != 0).then(|| format!("exit status {}", ran.status))
        })
    }
}

fn perftest(program: &str, count: usize, size: usize, port: u16, is_client: bool) -> String {
    let server = if is_client {
        HOST_IN_GUEST.to_string()
    } else {
        String::new()
    };
    format!("{program} -R -F -n {count} -s {size} -p {port} {server}")
}
