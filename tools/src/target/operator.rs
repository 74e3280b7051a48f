//! What the operator of a running target asks it, on the same machine: how it is, what registrations are stored, to revoke some,
//! whether its volume would have certain tenants, and for snapshots, which one with a mount makes there.
//!
//! ```text
//!   command                                     target
//!    │ ── "FNO1", length, question (JSON) ────► │ both look at each other's user
//!    │ ◄──────────── length, answer (JSON) ──── │
//! ```
//!
//! Lengths are four bytes, little-endian. The socket is that of [`handover`](super::handover).

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use contigfs::{BlockStore, Fs, FsError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tracing::debug;

use super::handover::{self, Purpose};
use super::status::{Status, is_up};
use super::tenancy::{TenantSettings, epochs};
use crate::credentials::registry::{Choice, Listed};
use crate::credentials::{Registry, TenantName};

/// How a conversation begins.
pub(super) const HELLO: &[u8; 4] = b"FNO1";
/// Longest question: it holds one path.
const QUESTION_MAX: usize = 64 << 10;
/// Longest answer: all registrations, with their paths.
const ANSWER_MAX: usize = 256 << 20;
/// Longest wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The same, to who only wants to know something.
pub const SHORT: Duration = Duration::from_secs(10);

/// A target that is there and does not answer.
#[derive(Clone, Copy, Debug, Error)]
#[error("the running target has not answered for {} s: it has been stopped, or it hangs", .0.as_secs())]
pub(super) struct Silent(pub Duration);

/// What an operator wants with registrations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// To see these.
    List(Choice),
    /// That these are refused for ever.
    Revoke(Choice),
}

/// A question on its way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Asked {
    About(Question),
    Snapshots(SnapshotQuestion),
    State(State),
}

/// What an operator wants with snapshots. Their names are any bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SnapshotQuestion {
    /// To see all of them.
    ListSnapshots,
    /// A new one.
    MakeSnapshot(Vec<u8>),
    /// That this one goes.
    DeleteSnapshot(Vec<u8>),
}

/// A snapshot, as an operator is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedSnapshot {
    /// What its maker calls it.
    pub name: Vec<u8>,
    /// When it was made, Unix nanoseconds.
    pub created_ns: u64,
}

/// How things are.
#[derive(Debug, Serialize, Deserialize)]
enum State {
    /// The target, and what it has done.
    Status,
    /// Whether the volume would have these tenants, with these epochs.
    WouldEnrol(Vec<(String, u64)>),
}

/// What the question wants to know (the registrations that it was about, or the status), or why not.
type Answer<T> = Result<T, String>;

type Answering = dyn Fn(&Asked) -> Answer<Value> + Send;

/// Answers questions.
pub(super) struct Operator(Box<Answering>);

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}

impl Operator {
    /// Answers for this file system, which is not changed if it is `read_only`, and its registry, and with what `status` tells.
    pub(super) fn of<S: BlockStore + 'static>(
        (fs, read_only): (Arc<Fs<S>>, bool),
        registry: Arc<Registry<S>>,
        status: impl Fn() -> Status + Send + 'static,
    ) -> Self {
        Self(Box::new(move |question| {
            let listed = match question {
                Asked::Snapshots(question) => {
                    let answer = snapshots(&fs, read_only, question);
                    return said(&answer.map_err(|error| error.errno()));
                }
                Asked::About(Question::List(choice)) => registry.list(choice),
                Asked::About(Question::Revoke(choice)) => registry.revoke_chosen(choice),
                Asked::State(State::Status) => return said(&status()),
                Asked::State(State::WouldEnrol(tenants)) => {
                    return would_enrol(&registry, tenants);
                }
            };
            said(&listed.map_err(|error| error.to_string())?)
        }))
    }

    /// Answers one question, on a stream that has said hello.
    pub(super) fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        let question = receive(&mut stream, QUESTION_MAX)?;
        let answer = (self.0)(&serde_json::from_slice(&question)?);
        send(&mut stream, &serde_json::to_vec(&answer)?)
    }
}

/// Asks the target that serves these devices about registrations; none if nobody does.
pub fn ask(devices: &[PathBuf], question: &Question) -> Result<Option<Vec<Listed>>> {
    let patience = match question {
        Question::List(_) => SHORT,
        // It is durable when it is answered.
        Question::Revoke(_) => PATIENCE,
    };
    let asked = Asked::About(question.clone());
    all_said(answer_to(devices, &asked, patience))
}

/// Asks the target that serves these devices for snapshots, of which it answers those that the question is about, or an errno; none if
/// nobody does.
pub fn ask_snapshots(
    devices: &[PathBuf],
    question: SnapshotQuestion,
) -> Result<Option<Result<Vec<ListedSnapshot>, i32>>> {
    let patience = match question {
        SnapshotQuestion::ListSnapshots => SHORT,
        // They are there, or gone, durably when this is answered.
        SnapshotQuestion::MakeSnapshot(_) | SnapshotQuestion::DeleteSnapshot(_) => PATIENCE,
    };
    all_said(answer_to(devices, &Asked::Snapshots(question), patience))
}

/// Asks the target that serves these devices how it is, and waits so long for the answer; none if nobody does.
pub fn ask_status(devices: &[PathBuf], patience: Duration) -> Result<Option<Status>> {
    all_said(answer_to(devices, &Asked::State(State::Status), patience))
}

/// Fails if the target that serves these devices says that their volume would not have these tenants, or nothing. If nobody serves
/// them, or only one that is too old to know, that is found out later.
pub fn check_tenants(devices: &[PathBuf], tenants: &[TenantSettings]) -> Result<()> {
    if tenants.is_empty() {
        return Ok(());
    }
    let tenants = epochs(tenants).into_iter();
    let text = |(name, epoch): (TenantName, u64)| (name.as_str().to_owned(), epoch);
    let question = State::WouldEnrol(tenants.map(text).collect());
    match answer_to::<Value>(devices, &Asked::State(question), SHORT) {
        Ok(Some(Err(why))) => Err(anyhow!(why)),
        Ok(_) => Ok(()),
        Err(error) if error.is::<Silent>() => Err(error),
        Err(error) => {
            debug!("tenants are checked later: {error:#}");
            Ok(())
        }
    }
}

/// Fails if the target that serves these devices says nothing, or goes on without some of them: another one does so only if it is
/// told to, and the volume would be served by nobody. If nobody serves them, or only one that is too old to say, that is found out
/// later.
pub fn check_devices(devices: &[PathBuf], degraded: bool) -> Result<()> {
    if degraded {
        return Ok(());
    }
    let status = match ask_status(devices, SHORT) {
        Ok(Some(status)) => status,
        Ok(None) => return Ok(()),
        Err(error) if error.is::<Silent>() => return Err(error),
        Err(error) => {
            debug!("devices are checked later: {error:#}");
            return Ok(());
        }
    };
    let several = status.volume.devices.len() > 1;
    let gone = status.volume.devices.into_iter();
    let gone = gone.filter(|device| several && !is_up(&device.state));
    let gone: Vec<String> = gone.map(|device| device.path).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let gone = gone.join(", ");
    bail!(
        "the running target goes on without {gone}, where what was on it is lost: so does one that replaces it if told so by --degraded"
    )
}

fn all_said<T>(answer: Result<Option<Answer<T>>>) -> Result<Option<T>> {
    answer?.transpose().map_err(|why| anyhow!(why))
}

fn snapshots<S: BlockStore>(
    fs: &Fs<S>,
    read_only: bool,
    question: &SnapshotQuestion,
) -> Result<Vec<ListedSnapshot>, FsError> {
    let all = match question {
        SnapshotQuestion::ListSnapshots => fs.snapshots(),
        _ if read_only => return Err(FsError::ReadOnly),
        SnapshotQuestion::MakeSnapshot(name) => vec![fs.make_snapshot(name)?],
        SnapshotQuestion::DeleteSnapshot(name) => {
            fs.delete_snapshot(name)?;
            Vec::new()
        }
    };
    let listed = all.into_iter().map(|snapshot| ListedSnapshot {
        name: snapshot.name,
        created_ns: snapshot.created_ns,
    });
    Ok(listed.collect())
}

fn would_enrol<S: BlockStore>(registry: &Registry<S>, tenants: &[(String, u64)]) -> Answer<Value> {
    let parsed = |(name, epoch): &(String, u64)| Some((name.parse().ok()?, *epoch));
    let wanted: Option<Vec<_>> = tenants.iter().map(parsed).collect();
    let wanted = wanted.ok_or("that is no name of a tenant")?;
    registry
        .would_enrol(&wanted)
        .map(|()| Value::Null)
        .map_err(|error| error.to_string())
}

fn answer_to<T: DeserializeOwned>(
    devices: &[PathBuf],
    question: &Asked,
    patience: Duration,
) -> Result<Option<Answer<T>>> {
    let Some(mut stream) = handover::connect(devices, Purpose::Question)? else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(patience))?;
    // A path that is no text cannot be asked about.
    let question = serde_json::to_vec(question)?;
    let asked = stream.write_all(HELLO);
    let asked = asked.and_then(|()| send(&mut stream, &question));
    let answer = match asked.and_then(|()| receive(&mut stream, ANSWER_MAX)) {
        Err(error) if is_silence(&error) => return Err(Silent(patience).into()),
        answer => answer,
    };
    let answer =
        answer.context("the running target does not answer: it may be older than this program")?;
    Ok(Some(serde_json::from_slice(&answer)?))
}

/// Whether that says that nothing has come for as long as it was waited for.
pub(super) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}

fn said(answer: &impl Serialize) -> Answer<Value> {
    serde_json::to_value(answer).map_err(|error| error.to_string())
}

fn send(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&len.to_le_bytes())?;
    stream.write_all(bytes)
}

fn receive(stream: &mut UnixStream, max: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
