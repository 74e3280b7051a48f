//! What a load run found out: rates, latency percentiles, processor time.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in nanoseconds, from 100 ns to 100 s with three digits.
pub type Latencies = Histogram<u64>;

/// Operations of which one is beyond the 99.9th percentile. Of fewer that is the longest of all, by another name.
const TAIL_MIN: u64 = 1000;

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
    /// 99.9th percentile, microseconds; unknown of fewer than a thousand operations.
    pub p999_us: Option<f64>,
    /// Cores that the client kept busy.
    pub cpu_client: f64,
    /// Cores that the server kept busy; unknown for a server that we did not start.
    pub cpu_server: Option<f64>,
    /// System calls of the client for each operation, where its ring counts them.
    pub client_calls_per_op: Option<f64>,
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
    calls: Option<u64>,
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
            calls: None,
        })
    }

    /// With the system calls that the client made.
    pub fn with_calls(self, calls: u64) -> Self {
        Self::of(Parts {
            calls: Some(calls),
            ..self.parts
        })
    }

    /// Several runs of the same shape as if they had been one; none if no operation was measured in any of them, of which
    /// there is nothing to say.
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
            sum.calls = sum.calls.zip(run.calls).map(|(a, b)| a + b);
        }
        (!sum.latencies.is_empty()).then(|| Self::of(sum))
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
            p999_us: (operations >= TAIL_MIN).then(|| us(latencies.value_at_quantile(0.999))),
            cpu_client: parts.client.as_secs_f64() / seconds,
            cpu_server: parts.server.map(|t| t.as_secs_f64() / seconds),
            client_calls_per_op: parts.calls.map(|calls| calls as f64 / operations as f64),
            operations,
            seconds,
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operations: u64) -> Figures {
        let mut taken = latencies();
        taken.record_n(1000, operations).unwrap();
        let second = Duration::from_secs(1);
        Figures::new(taken, 4096, second, second, None)
    }

    /// Turns in which nothing was over count with their time; where nothing was over in any, there are no figures, no zeros.
    #[test]
    fn nothing_measured_is_no_figure() {
        assert!(Figures::sum(vec![]).is_none());
        assert!(Figures::sum(vec![run(0), run(0)]).is_none());
        let sum = Figures::sum(vec![run(0), run(10), run(0)]).unwrap();
        assert_eq!((sum.operations, sum.seconds), (10, 3.0));
        assert_eq!(sum.iops, 10.0 / 3.0);
    }

    /// What one operation in a thousand is like is not said of fewer.
    #[test]
    fn few_operations_have_no_tail() {
        assert_eq!(run(999).p999_us, None);
        assert!(run(1000).p999_us.is_some());
        assert!(
            Figures::sum(vec![run(500), run(500)])
                .unwrap()
                .p999_us
                .is_some()
        );
    }
}
