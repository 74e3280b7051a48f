//! The pages of the exporter, and a conversation about them.

use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::families::{self, Format};
use super::guests::Guest;
use super::{FIELDS_MAX, FRESH, NEXT, REQUEST_BYTES, Teller, Told};

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

type Answer = Response<Full<Bytes>>;

/// The pages.
pub(super) struct Pages<T> {
    teller: Teller<T>,
    /// Seconds since 1970 when the process began to serve. Kept, so that it is the same whenever somebody asks.
    started: OnceCell<f64>,
    /// What was told last, and when.
    last: RefCell<Option<(Instant, T)>>,
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl<T: Told> Pages<T> {
    /// Those of the process that `teller` tells of.
    pub(super) fn new(teller: Teller<T>) -> Self {
        Self {
            teller,
            started: OnceCell::new(),
            last: RefCell::default(),
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let said = "only GET and HEAD are possible\n";
            let mut refused = page(StatusCode::METHOD_NOT_ALLOWED, PLAIN, said);
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        let done = match request.uri().path() {
            "/metrics" => {
                let format = wanted(request);
                let status = self.status();
                let started = self.started(&status);
                let text = families::of(status, started, format);
                text.map(|text| page(StatusCode::OK, format.content_type(), text))
                    .map_err(|error| error.to_string())
            }
            "/status" => serde_json::to_vec(&self.status())
                .map(|json| page(StatusCode::OK, JSON, json))
                .map_err(|error| error.to_string()),
            "/healthz" => Ok(match self.status().health() {
                Ok(()) => page(StatusCode::OK, PLAIN, "ok\n"),
                Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
            }),
            _ => {
                let said = "there are /metrics, /status and /healthz\n";
                Ok(page(StatusCode::NOT_FOUND, PLAIN, said))
            }
        };
        done.unwrap_or_else(|why| page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, why))
    }

    fn status(&self) -> T {
        let now = Instant::now();
        let mut last = self.last.borrow_mut();
        if let Some((told, status)) = &*last
            && now < *told + FRESH
        {
            return status.clone();
        }
        let status = (self.teller)();
        *last = Some((Instant::now(), status.clone()));
        status
    }

    fn started(&self, status: &T) -> f64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH);
        let started = || now().unwrap_or_default().as_secs_f64() - status.process().uptime;
        *self.started.get_or_init(started)
    }
}

/// OpenMetrics for those who say that they understand it; anybody else understands the older format of Prometheus.
fn wanted(request: &Request<Incoming>) -> Format {
    let accepted = request.headers().get_all(ACCEPT).into_iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    match accepted.any(|kinds| kinds.split(',').any(is_open_metrics)) {
        true => Format::OpenMetrics,
        false => Format::Prometheus,
    }
}

/// Whether this entry of an `Accept` field takes OpenMetrics: with a weight of 0 it refuses them (RFC 9110 §12.4.2).
fn is_open_metrics(entry: &str) -> bool {
    let mut parts = entry.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let mut weights = parts.filter_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    kind.eq_ignore_ascii_case("application/openmetrics-text")
        && !weights.any(|weight| weight.parse() == Ok(0.0))
}

fn page(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut page = Response::new(Full::new(body.into()));
    *page.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    page.headers_mut().insert(CONTENT_TYPE, kind);
    page
}

/// Answers what one connection asks, until it ends or is late.
pub(super) async fn converse<T: Told>(stream: TcpStream, guest: Rc<Guest>, pages: Rc<Pages<T>>) {
    let asking = Rc::clone(&guest);
    let service = service_fn(move |request: Request<Incoming>| {
        asking.stays(Instant::now() + NEXT);
        ready(Ok::<_, Infallible>(pages.answer(&request)))
    });
    let mut http = http1::Builder::new();
    // How long anything may take is what the guest knows.
    http.header_read_timeout(None)
        .max_headers(FIELDS_MAX)
        .max_buf_size(REQUEST_BYTES);
    let mut conversation = pin!(http.serve_connection(TokioIo::new(stream), service));
    // However it ends: there is nobody to be told.
    while timeout_at(guest.until().into(), conversation.as_mut())
        .await
        .is_err()
        && Instant::now() < guest.until()
    {}
}
