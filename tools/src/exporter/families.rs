//! Metrics in the text formats of Prometheus and OpenMetrics.
//!
//! Names are those of Prometheus' conventions: base units, `_total` behind what only grows (the encoder writes it), and the usual ones
//! for the process.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
    prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Told;
use crate::measured::{Operations, Process};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4.
    Prometheus,
}

impl Format {
    /// What HTTP calls it.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// The metrics of what is told by a process that was started so many seconds after 1970.
pub(crate) fn of<T: Told>(told: T, started: f64, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { told, started }));
    let mut text = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut text, &registry)?,
        Format::Prometheus => prometheus_text::encode(&mut text, &registry)?,
    }
    Ok(text)
}

#[derive(Debug)]
struct Metrics<T> {
    told: T,
    started: f64,
}

impl<T: Told> Collector for Metrics<T> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.process(self.told.version(), self.told.process(), self.started)?;
        self.told.tell(&mut families)
    }
}

/// Writes families, one after the other.
pub(crate) struct Families<'a>(DescriptorEncoder<'a>);

/// One sample without labels.
pub(crate) fn one<V>(value: V) -> [(NoLabels, V); 1] {
    [([], value)]
}

/// The labels of what has none.
pub(crate) type NoLabels = [(&'static str, &'static str); 0];

impl Families<'_> {
    /// What only grows; its name ends with `_total`, which is added.
    pub(crate) fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        about: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let kind = MetricType::Counter;
        let mut family = self.0.encode_descriptor(name, about, None, kind)?;
        for (labels, value) in samples {
            let mut sample = family.encode_family(&labels)?;
            sample.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// How things are now.
    pub(crate) fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        about: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, about, None, kind)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// What is text, as labels; its name ends with `_info`, which is added.
    pub(crate) fn info(
        &mut self,
        name: &str,
        about: &str,
        labels: impl EncodeLabelSet,
    ) -> fmt::Result {
        let kind = MetricType::Info;
        let mut family = self.0.encode_descriptor(name, about, None, kind)?;
        family.encode_info(&labels)
    }

    /// How long operations took, how many failed, and the bytes that they moved.
    pub(crate) fn operations<'a, L: EncodeLabelSet, I: Iterator<Item = (L, &'a Operations)>>(
        &mut self,
        name: &str,
        what: &str,
        samples: impl Fn() -> I,
    ) -> fmt::Result {
        self.good_operations(name, what, &samples)?;
        self.counter(
            &format!("{name}_failures"),
            &format!("Failed {what}."),
            samples().map(|(labels, operations)| (labels, operations.failed)),
        )
    }

    /// The same of those that never fail.
    pub(crate) fn good_operations<
        'a,
        L: EncodeLabelSet,
        I: Iterator<Item = (L, &'a Operations)>,
    >(
        &mut self,
        name: &str,
        what: &str,
        samples: &impl Fn() -> I,
    ) -> fmt::Result {
        if samples().next().is_none() {
            return Ok(());
        }
        let about = format!("How long {what} took.");
        let kind = MetricType::Histogram;
        let name_of_times = format!("{name}_seconds");
        let mut family = self
            .0
            .encode_descriptor(&name_of_times, &about, None, kind)?;
        for (labels, operations) in samples() {
            let buckets = buckets(operations);
            // Not `count`: a sample whose buckets say another number is none.
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(operations.seconds, count, &buckets, None)?;
        }
        self.counter(
            &format!("{name}_bytes"),
            &format!("Bytes moved by {what}."),
            samples().map(|(labels, operations)| (labels, operations.bytes)),
        )
    }

    fn process(&mut self, version: &str, process: &Process, started: f64) -> fmt::Result {
        let version = [("version", version)];
        self.info("flashnet_build", "The program.", version)?;

        self.counter(
            "process_cpu_seconds",
            "Processor time of all threads, in user space and in the kernel.",
            one(process.cpu),
        )?;
        self.gauge(
            "process_resident_memory_bytes",
            "Memory that the process has; of a target touched pages of the pool among it.",
            one(process.resident),
        )?;
        self.gauge(
            "process_start_time_seconds",
            "When it began to serve, in seconds since 1970.",
            one(started),
        )
    }
}

/// Operations by how long they took at most, in seconds; each is in one of these.
fn buckets(operations: &Operations) -> Vec<(f64, u64)> {
    let Some((rest, classes)) = operations.classes.split_last() else {
        return vec![(f64::INFINITY, operations.count)];
    };
    let limit = |class| ftl::class_limit(class).map_or(f64::INFINITY, |limit| limit.as_secs_f64());
    let limited = classes.iter().enumerate();
    let limited = limited.map(|(class, &count)| (limit(class), count));
    limited.chain([(f64::INFINITY, *rest)]).collect()
}

#[cfg(test)]
pub(crate) mod grammar;
