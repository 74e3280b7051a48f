//! What all programs share: where they run, with what, and how they come by their connections.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Result;
use softrdma::RegionTable;

use super::link::{Link, Plan};
use super::manner::{Agreed, Manner};
use super::{cmatose, perftest, rdma, rping, rstream};
use crate::cli::peer::Program;

/// Largest message or buffer.
pub(super) const SIZE_MAX: usize = 1 << 20;

/// Which side.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// The other program listens there.
    Connect(SocketAddr),
    /// The other program connects here.
    Listen(&'a TcpListener),
}

/// One run of a program.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) program: Program,
    pub(super) manner: &'a Manner,
    /// Messages, pings or operations.
    pub(super) count: usize,
    /// Bytes of each.
    pub(super) size: usize,
    pub(super) connections: usize,
    table: Arc<RegionTable>,
    agreed: RefCell<Vec<Agreed>>,
}

impl<'a> Task<'a> {
    pub(super) fn new(program: Program, manner: &'a Manner, count: usize, size: usize) -> Self {
        Self {
            program,
            manner,
            count,
            size,
            connections: 1,
            table: RegionTable::new(rand::random()),
            agreed: RefCell::default(),
        }
    }

    pub(super) fn with_connections(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    /// Plays it to its end.
    pub(super) fn run(&self, place: &Place<'_>) -> Result<()> {
        match self.program {
            Program::Rping => rping::run(self, place),
            Program::Cmatose => cmatose::run(self, place),
            Program::Rdma => rdma::run(self, place),
            Program::WriteBw | Program::ReadBw | Program::SendBw => perftest::run(self, place),
            Program::Rstream => rstream::run(self, place),
        }
    }

    /// What was agreed on, connection by connection.
    pub(super) fn agreed(&self) -> Vec<Agreed> {
        self.agreed.borrow().clone()
    }

    pub(super) fn table(&self) -> &RegionTable {
        &self.table
    }

    /// A plan without messages and private data.
    pub(super) fn plan(&self) -> Plan<'_> {
        Plan {
            manner: self.manner,
            table: &self.table,
            receives: 0,
            message_bytes: 0,
            private_data: &[],
        }
    }

    pub(super) fn connect(&self, address: SocketAddr, plan: &Plan<'_>) -> Result<Link> {
        let link = Link::connect(address, plan)?;
        self.agreed.borrow_mut().push(link.agreed()?);
        Ok(link)
    }

    /// Accepts a connection, with the private data of the plan in the Reply.
    pub(super) fn accept(&self, listener: &TcpListener, plan: &Plan<'_>) -> Result<Link> {
        let mut link = Link::accept(listener, plan)?;
        link.answer(plan.private_data)?;
        self.agreed.borrow_mut().push(link.agreed()?);
        Ok(link)
    }
}
