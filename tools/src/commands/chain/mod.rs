//! `chain`: replication groups.

mod bench;
mod create;
mod members;
mod serve;
mod status;
mod verify;
mod watched;

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use offload_chain::client::{Client, ClientError, ClientSettings};
use offload_chain::config::{self, Store, list};
use offload_chain::host::Timing;
use offload_chain::membership::{CONFIG, View};
use offload_chain::tls::TlsError;

use crate::cli::chain::{ChainCommand, StoreOption, TimingOptions};

/// Between heartbeats.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn run(command: &ChainCommand, json: bool) -> Result<()> {
    match command {
        ChainCommand::Create(options) => create::run(options, json),
        ChainCommand::Status(options) => status::run(options, json),
        ChainCommand::Add(options) => members::add(options, json),
        ChainCommand::Remove(options) => members::remove(options, json),
        ChainCommand::Serve(options) => serve::run(options, json),
        ChainCommand::Bench(options) => bench::run(options, json),
        ChainCommand::Verify(options) => verify::run(options, json),
    }
}

/// Opens a store that is there.
fn open(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    // Opening a file makes what is missing, which is nobody's wish but of those who make a group.
    if config::file_of(&store.store).is_some_and(|path| !path.exists()) {
        bail!("there is no group in {store}: create one first, by `flashnet chain create`");
    }
    open_or_make(store)
}

/// Opens the store of a group. Who goes on to wait for members then waits for these, and not for a store that does not answer.
fn open_with_group(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    let mut opened = open(store)?;
    let view = View::of(&list(&mut *opened, CONFIG)?);
    if view.configuration.is_none() {
        bail!("there is no group in {store}");
    }
    Ok(opened)
}

/// Connects, or says what the user can do about it.
fn connect(store: Box<dyn Store + Send>, settings: ClientSettings) -> Result<Client> {
    Client::connect(store, settings).map_err(|error| match way_out(&error) {
        Some(way_out) => anyhow!("{error} ({way_out})"),
        None => error.into(),
    })
}

fn way_out(error: &ClientError) -> Option<&'static str> {
    let cause = match error {
        ClientError::NeedsTls => return Some("--tls, and --tls-ca"),
        ClientError::Tls { cause, .. } => cause,
        _ => return None,
    };
    Some(match cause {
        TlsError::NotTls => "members that serve without TLS are spoken to without --tls",
        TlsError::Expired | TlsError::NotYetValid => {
            "the member needs another (--tls-cert of chain serve)"
        }
        TlsError::CertificateWanted | TlsError::CertificateRefused(_) => {
            "--tls-cert and --tls-key name one that a CA of the members' --tls-client-ca or --tls-ca has signed"
        }
        TlsError::UnknownIssuer | TlsError::WrongName { .. } => cause.way_out(),
        _ => "the log of the member may say more",
    })
}

fn open_or_make(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    config::open(&store.store).with_context(|| format!("cannot use the store {store}"))
}

/// For messages: without what may be a password.
impl fmt::Display for StoreOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.store.split_once("://");
        match parts.and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
            Some((scheme, place)) => write!(f, "{scheme}://...@{place}"),
            None => f.write_str(&self.store),
        }
    }
}

impl StoreOption {
    /// For a command line: as a shell takes it.
    fn quoted(&self) -> String {
        let shown = self.to_string();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:.,@_-+=%".contains(c);
        match shown.chars().all(is_plain) {
            true => shown,
            false => format!("'{}'", shown.replace('\'', "'\\''")),
        }
    }
}

impl TimingOptions {
    fn timing(&self) -> Result<Timing> {
        if !(SHORTEST..=LONGEST).contains(&self.period) {
            bail!(
                "--period {:?}: {SHORTEST:?} to {LONGEST:?} are possible",
                self.period
            );
        }
        Ok(Timing {
            period: self.period,
            misses: self.misses,
            ..Timing::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store is named so that a shell understands it, and without a password.
    #[test]
    fn stores_in_messages() {
        for (store, shown, quoted) in [
            ("/run/log.store", "/run/log.store", "/run/log.store"),
            ("./a b's", "./a b's", "'./a b'\\''s'"),
            ("./me@home", "./me@home", "./me@home"),
            (
                "etcds://a:1,b:1/log?cert=c.pem&key=k.pem",
                "etcds://a:1,b:1/log?cert=c.pem&key=k.pem",
                "'etcds://a:1,b:1/log?cert=c.pem&key=k.pem'",
            ),
            (
                "etcd://me:s@cret@a:1/log",
                "etcd://...@a:1/log",
                "etcd://...@a:1/log",
            ),
        ] {
            let option = StoreOption {
                store: store.to_owned(),
            };
            assert_eq!(option.to_string(), shown);
            assert_eq!(option.quoted(), quoted);
        }
    }
}
