//! What a load run found out: rates, latency percentiles, processor time.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in nanoseconds, from 100 ns to 100 s with three digits.
pub type Latencies = Histogram<u64>;

/// An empty histogram of latencies.
pub fn latencies() -> Latencies {
    Histogram::new_with_bounds(100, 100_000_000_000, 3).expect("the bounds are legal")
}

/// Figures of one run; the field names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Operations per second.
    pub iops: f64,
    /// Payload, MiB per second.
    pub mib_s: f64,
    /// Mean latency, microseconds.
    pub mean_us: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, microseconds.
    pub p999_us: f64,
    /// Cores that the client kept busy.
    pub cpu_client: f64,
    /// Cores that the server kept busy; unknown for a server that we did not start.
    pub cpu_server: Option<f64>,
    /// Operations measured.
    pub operations: u64,
    /// Seconds measured.
    pub seconds: f64,
    #[serde(skip)]
    parts: Parts,
}

/// What figures are computed from.
#[derive(Clone, Debug)]
struct Parts {
    latencies: Latencies,
    size: usize,
    elapsed: Duration,
    client: Duration,
    server: Option<Duration>,
}

impl Figures {
    /// Sums up a run of `elapsed` with operations of `size` bytes.
    pub fn new(
        latencies: Latencies,
        size: usize,
        elapsed: Duration,
        client: Duration,
        server: Option<Duration>,
    ) -> Self {
        Self::of(Parts {
            latencies,
            size,
            elapsed,
            client,
            server,
        })
    }

    /// Several runs of the same shape as if they had been one; none for none.
    pub fn sum(runs: Vec<Self>) -> Option<Self> {
        let mut runs = runs.into_iter().map(|run| run.parts);
        let mut sum = runs.next()?;
        for run in runs {
            sum.latencies
                .add(run.latencies)
                .expect("histograms have the same bounds");
            sum.elapsed += run.elapsed;
            sum.client += run.client;
            sum.server = sum.server.zip(run.server).map(|(a, b)| a + b);
        }
        Some(Self::of(sum))
    }

    fn of(parts: Parts) -> Self {
        let seconds = parts.elapsed.as_secs_f64();
        let latencies = &parts.latencies;
        let operations = latencies.len();
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            iops: operations as f64 / seconds,
            mib_s: operations as f64 * parts.size as f64 / seconds / f64::from(1 << 20),
            mean_us: latencies.mean() / 1e3,
            p50_us: us(latencies.value_at_quantile(0.5)),
            p99_us: us(latencies.value_at_quantile(0.99)),
            p999_us: us(latencies.value_at_quantile(0.999)),
            cpu_client: parts.client.as_secs_f64() / seconds,
            cpu_server: parts.server.map(|t| t.as_secs_f64() / seconds),
            operations,
            seconds,
            parts,
        }
    }
}
