//! Asks etcd over its gateway: at which endpoint, over which connection, for how long.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Response, StatusCode};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, BodyReader, Error, Timeout};

use super::REQUEST_TIMEOUT;
use super::endpoint::{Endpoint, EtcdOpenError, User};
use super::message::{Authenticate, Authenticated, Refused, Watched};
use super::names::Names;
use super::tls::EtcdTls;

/// An answer may have this many bytes: a list of some 700 keys with the longest values.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// A watch that says nothing for so long is set up again: etcd may be gone without a word, or cut off from what changes.
const WATCH_IDLE: Duration = Duration::from_secs(10);

/// What is asked about is asked only of a member that has a leader: one that was cut off from the majority would wait for that longer than anybody
/// waits for it. Of a stream etcd ends what it has begun, when the leader is lost.
const WANTS_LEADER: (&str, &str) = ("Grpc-Metadata-hasleader", "true");
/// Between two rounds of asking, when no member has a leader: they are electing one.
const ELECTION: Duration = Duration::from_millis(50);

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum Problem {
    /// etcd says so.
    Refused(Refused),
    /// Whether it was carried out is unknown; why.
    Unknown(String),
}

impl Problem {
    /// Another endpoint may do better.
    fn is_of_the_endpoint(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.is_unavailable(),
            Self::Unknown(_) => true,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => write!(f, "etcd says: {}", refused.message),
            Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Why one endpoint did not do.
enum Failure {
    /// It was not asked.
    NotAsked(String),
    /// It was not asked, since it has no leader now.
    NoLeader(String),
    Problem(Problem),
}

/// etcd, by one or several endpoints. For several threads, which do not hold each other up.
pub(super) struct Gateway {
    endpoints: Vec<Endpoint>,
    /// Which endpoint is asked first.
    current: AtomicUsize,
    agent: Agent,
    names: Names,
    /// For etcd that wants to know who asks.
    token: Mutex<Option<String>>,
    closed: Mutex<bool>,
    closing: Condvar,
}

impl Gateway {
    pub(super) fn new(endpoints: Vec<Endpoint>, tls: &EtcdTls) -> Result<Self, EtcdOpenError> {
        if endpoints.is_empty() {
            return Err(EtcdOpenError::NoEndpoint);
        }
        // Without need nothing is read.
        let tls = match endpoints.iter().any(Endpoint::has_tls) {
            true => tls.config()?,
            false => TlsConfig::default(),
        };
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // What the environment says about proxies is not meant for this.
            .proxy(None)
            .build();
        let names = Names::default();
        let agent = Agent::with_parts(config, DefaultConnector::new(), names.clone());
        Ok(Self {
            endpoints,
            current: AtomicUsize::new(0),
            agent,
            names,
            token: Mutex::default(),
            closed: Mutex::default(),
            closing: Condvar::new(),
        })
    }

    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Ends what is under way, and refuses what comes.
    pub(super) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.closing.notify_all();
        self.agent.clone().shutdown();
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, unless it is closed. Returns whether to go on.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = (self.closing).wait_timeout_while(closed, time, |closed| !*closed);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Asks once, and hears the whole answer. While there is no leader it waits for one.
    pub(super) fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<A, Problem> {
        let question = emit(question)?;
        let until = Instant::now() + REQUEST_TIMEOUT;
        let first = self.current.load(Ordering::Relaxed);
        loop {
            let (mut not_asked, mut electing) = (Vec::new(), false);
            for turn in first..first + self.endpoints.len() {
                let endpoint = &self.endpoints[turn % self.endpoints.len()];
                match self.ask_at(endpoint, path, &question, until) {
                    Ok(bytes) => {
                        self.current.store(turn, Ordering::Relaxed);
                        return serde_json::from_slice(&bytes).map_err(|error| {
                            self.current.store(turn + 1, Ordering::Relaxed);
                            not_etcd(endpoint, path, &error)
                        });
                    }
                    Err(Failure::NotAsked(why)) => not_asked.push(why),
                    Err(Failure::NoLeader(why)) => {
                        electing = true;
                        not_asked.push(why);
                    }
                    Err(Failure::Problem(problem)) => {
                        if problem.is_of_the_endpoint() {
                            self.names.forget();
                            self.current.store(turn + 1, Ordering::Relaxed);
                        }
                        return Err(problem);
                    }
                }
            }
            let again = electing && left(until) > ELECTION && self.pause(ELECTION);
            if !again {
                self.names.forget();
                return Err(Problem::Unknown(not_asked.join("; ")));
            }
        }
    }

    fn ask_at(
        &self,
        endpoint: &Endpoint,
        path: &str,
        question: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, Failure> {
        self.with_token(endpoint, until, |token| {
            let request = self.agent.post(endpoint.url(path)).config();
            let request = request
                .timeout_global(Some(left(until)))
                .timeout_connect(Some(self.patience()))
                .build()
                .header(WANTS_LEADER.0, WANTS_LEADER.1);
            let request = token.iter().fold(request, |request, token| {
                request.header("Authorization", *token)
            });
            let failed = |error| failure(endpoint, path, error);
            let response = request.send(question).map_err(failed)?;
            whole(endpoint, path, response)
        })
    }

    /// Asks the current endpoint for a stream of answers.
    pub(super) fn stream(&self, path: &str, question: &impl Serialize) -> Result<Stream, Problem> {
        let question = emit(question)?;
        let used = self.current.load(Ordering::Relaxed);
        let endpoint = &self.endpoints[used % self.endpoints.len()];
        let until = Instant::now() + REQUEST_TIMEOUT;
        let asked = self.with_token(endpoint, until, |token| {
            let request = self.agent.post(endpoint.url(path)).config();
            let request = request
                .timeout_resolve(Some(REQUEST_TIMEOUT))
                .timeout_connect(Some(self.patience()))
                .timeout_send_request(Some(REQUEST_TIMEOUT))
                .timeout_send_body(Some(REQUEST_TIMEOUT))
                .timeout_recv_response(Some(REQUEST_TIMEOUT))
                .timeout_per_read(Some(WATCH_IDLE))
                .build()
                .header(WANTS_LEADER.0, WANTS_LEADER.1);
            let request = token.iter().fold(request, |request, token| {
                request.header("Authorization", *token)
            });
            let failed = |error| failure(endpoint, path, error);
            let response = request.send(&question).map_err(failed)?;
            match response.status() {
                StatusCode::OK => Ok(response.into_body()),
                _ => Err(refusal(endpoint, path, response)),
            }
        });
        match asked {
            Ok(body) => Ok(Stream {
                used,
                place: endpoint.url(path),
                reader: BufReader::new(body.into_reader()),
                line: Vec::new(),
            }),
            Err(failure) => {
                self.names.forget();
                self.leave(used);
                Err(match failure {
                    Failure::NotAsked(why) | Failure::NoLeader(why) => Problem::Unknown(why),
                    Failure::Problem(problem) => problem,
                })
            }
        }
    }

    /// The stream is none: from now on the next endpoint is asked first.
    pub(super) fn give_up(&self, stream: &Stream) {
        self.leave(stream.used);
    }

    /// Several threads may find the same one wanting.
    fn leave(&self, used: usize) {
        let next = used.wrapping_add(1);
        let _ = (self.current).compare_exchange(used, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Connecting to an endpoint leaves time for the others.
    fn patience(&self) -> Duration {
        REQUEST_TIMEOUT / u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX)
    }

    /// With the token of the endpoint's user, if it has one; with a new one, if etcd wants that.
    fn with_token<T>(
        &self,
        endpoint: &Endpoint,
        until: Instant,
        ask: impl Fn(Option<&str>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(user) = &endpoint.user else {
            return ask(None);
        };
        let known = (self.token.lock().unwrap_or_else(PoisonError::into_inner)).clone();
        if let Some(token) = known {
            match ask(Some(&token)) {
                Err(Failure::Problem(Problem::Refused(refused))) if refused.wants_new_token() => {}
                asked => return asked,
            }
        }
        let token = self.authenticate(endpoint, user, until)?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        ask(Some(&token))
    }

    fn authenticate(
        &self,
        endpoint: &Endpoint,
        user: &User,
        until: Instant,
    ) -> Result<String, Failure> {
        let path = "auth/authenticate";
        let question = emit(&Authenticate {
            name: &user.name,
            password: &user.password,
        });
        let request = self.agent.post(endpoint.url(path)).config();
        let request = request
            .timeout_global(Some(left(until)))
            .timeout_connect(Some(self.patience()))
            .build()
            .header(WANTS_LEADER.0, WANTS_LEADER.1);
        let response = request
            .send(&question.map_err(Failure::Problem)?)
            .map_err(|error| failure(endpoint, path, error))?;
        let bytes = whole(endpoint, path, response)?;
        let answer: Authenticated = serde_json::from_slice(&bytes)
            .map_err(|error| Failure::Problem(not_etcd(endpoint, path, &error)))?;
        Ok(answer.token)
    }
}

/// A stream of answers, one a line.
pub(super) struct Stream {
    used: usize,
    place: String,
    reader: BufReader<BodyReader<'static>>,
    line: Vec<u8>,
}

impl Stream {
    /// Waits for the next. An error is the end of the stream.
    pub(super) fn next(&mut self) -> Result<Watched, String> {
        loop {
            self.line.clear();
            let mut part = (&mut self.reader).take(ANSWER_BYTES_MAX);
            let read = (part.read_until(b'\n', &mut self.line))
                .map_err(|error| format!("{} broke off: {error}", self.place))?;
            if read == 0 {
                return Err(format!("{} ended", self.place));
            }
            if read as u64 == ANSWER_BYTES_MAX {
                return Err(too_large(&self.place));
            }
            if !self.line.trim_ascii().is_empty() {
                return serde_json::from_slice(&self.line)
                    .map_err(|error| format!("{} is not etcd's: {error}", self.place));
            }
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn emit(question: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(question).map_err(|error| Problem::Unknown(error.to_string()))
}

/// The whole answer, or what etcd says instead.
fn whole(endpoint: &Endpoint, path: &str, response: Response<Body>) -> Result<Vec<u8>, Failure> {
    match response.status() {
        StatusCode::OK => read(endpoint, path, response),
        _ => Err(refusal(endpoint, path, response)),
    }
}

fn refusal(endpoint: &Endpoint, path: &str, response: Response<Body>) -> Failure {
    let status = response.status();
    let bytes = match read(endpoint, path, response) {
        Ok(bytes) => bytes,
        Err(failure) => return failure,
    };
    match Refused::parse(&bytes) {
        Some(refused) if refused.has_no_leader() => Failure::NoLeader(format!(
            "{}: etcd says: {}",
            endpoint.url(path),
            refused.message
        )),
        Some(refused) => Failure::Problem(Problem::Refused(refused)),
        None => Failure::Problem(Problem::Unknown(format!(
            "{} answers HTTP {status}: that is not etcd 3.4 or later; check the endpoint",
            endpoint.url(path)
        ))),
    }
}

fn read(endpoint: &Endpoint, path: &str, response: Response<Body>) -> Result<Vec<u8>, Failure> {
    // The question was sent, whatever the reason.
    let unknown = |why| Failure::Problem(Problem::Unknown(why));
    let place = endpoint.url(path);
    let mut body = response.into_body();
    if (body.content_length()).is_some_and(|length| length > ANSWER_BYTES_MAX) {
        return Err(unknown(too_large(&place)));
    }
    let read = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    read.map_err(|error| match error {
        Error::BodyExceedsLimit(_) => unknown(too_large(&place)),
        error => unknown(why(&place, &error)),
    })
}

fn not_etcd(endpoint: &Endpoint, path: &str, error: &serde_json::Error) -> Problem {
    let place = endpoint.url(path);
    Problem::Unknown(format!(
        "{place} answers what etcd does not ({error}); check the endpoint"
    ))
}

fn too_large(place: &str) -> String {
    format!("the answer of {place} has more than {ANSWER_BYTES_MAX} bytes")
}

fn why(place: &str, error: &Error) -> String {
    match error {
        Error::Timeout(Timeout::Connect) => format!("cannot connect to {place} in time"),
        Error::Timeout(_) => format!("no answer of {place} within {REQUEST_TIMEOUT:?}"),
        Error::Io(error) => format!("{place}: {error}"),
        error => format!("{place}: {error}"),
    }
}

/// Whether it was asked at all.
fn failure(endpoint: &Endpoint, path: &str, error: Error) -> Failure {
    let why = why(&endpoint.url(path), &error);
    match error {
        // `Other` is only said by `Names`.
        Error::Timeout(Timeout::Connect | Timeout::Resolve)
        | Error::HostNotFound
        | Error::Other(_) => Failure::NotAsked(why),
        Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Failure::NotAsked(why)
        }
        _ => Failure::Problem(Problem::Unknown(why)),
    }
}
