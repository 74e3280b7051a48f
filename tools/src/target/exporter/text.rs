//! A [`Status`] as metrics, in the text formats of Prometheus and OpenMetrics. `tools/docs/watching.md` lists them.
//!
//! Names are those of Prometheus' conventions: base units, `_total` behind what only grows (the encoder writes it), and the usual ones
//! for the process. All are from the same status, so they fit together. What a target does not have (a mount) has no family.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
    prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::super::status::{Operations, Remote, Status, Volume};
use super::health::is_up;

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
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

/// The metrics of a target that was started so many seconds after 1970.
pub(super) fn of(status: Status, started: f64, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { status, started }));
    let mut text = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut text, &registry)?,
        Format::Prometheus => prometheus_text::encode(&mut text, &registry)?,
    }
    Ok(text)
}

#[derive(Debug)]
struct Metrics {
    status: Status,
    started: f64,
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        let Status {
            version,
            process,
            volume,
            mount,
            remote,
        } = &self.status;
        let version = [("version", version.as_str())];
        families.info("flashnet_build", "The program.", version)?;

        families.counter(
            "process_cpu_seconds",
            "Processor time of all threads, in user space and in the kernel.",
            one(process.cpu),
        )?;
        families.gauge(
            "process_resident_memory_bytes",
            "Memory that the process has, touched pages of the pool among it.",
            one(process.resident),
        )?;
        families.gauge(
            "process_start_time_seconds",
            "When the target was started, in seconds since 1970.",
            one(self.started),
        )?;
        let calls = process.reactor_calls.iter().enumerate();
        families.counter(
            "flashnet_reactor_calls",
            "System calls of a reactor for its ring.",
            calls.map(|(reactor, &calls)| ([("reactor", reactor)], calls)),
        )?;

        families.volume(volume)?;
        families.log(volume)?;
        families.devices(volume)?;
        if let Some(mount) = mount {
            let path = [("path", mount.path.as_str())];
            families.info("flashnet_mount", "Where the volume is mounted.", path)?;
            let requests = || {
                let requests = mount.requests.iter();
                requests.map(|(op, requests)| ([("op", op.as_str())], requests))
            };
            families.operations(
                "flashnet_mount_request",
                "requests of the kernel to the mount",
                requests,
            )?;
        }
        families.remote(remote)
    }
}

/// Writes families, one after the other.
struct Families<'a>(DescriptorEncoder<'a>);

/// One sample without labels.
fn one<V>(value: V) -> [(NoLabels, V); 1] {
    [([], value)]
}

type NoLabels = [(&'static str, &'static str); 0];

impl Families<'_> {
    /// What only grows; its name ends with `_total`, which is added.
    fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
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
    fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
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
    fn info(&mut self, name: &str, about: &str, labels: impl EncodeLabelSet) -> fmt::Result {
        let kind = MetricType::Info;
        let mut family = self.0.encode_descriptor(name, about, None, kind)?;
        family.encode_info(&labels)
    }

    /// How long operations took, how many failed, and the bytes that they moved.
    fn operations<'a, L: EncodeLabelSet, I: Iterator<Item = (L, &'a Operations)>>(
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
    fn good_operations<'a, L: EncodeLabelSet, I: Iterator<Item = (L, &'a Operations)>>(
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

    fn volume(&mut self, volume: &Volume) -> fmt::Result {
        let labels = [
            ("uuid", volume.uuid.as_str()),
            ("gc_policy", volume.gc_policy.as_str()),
        ];
        self.info("flashnet_volume", "The volume that is served.", labels)?;
        self.gauge(
            "flashnet_volume_suspect",
            "1 if something is wrong with what the volume holds: fsck should look at it.",
            one(u64::from(volume.suspect)),
        )?;
        for (name, about, value) in [
            (
                "flashnet_volume_session",
                "How often the volume was opened.",
                volume.session,
            ),
            (
                "flashnet_volume_capacity_bytes",
                "Bytes that the volume can hold.",
                volume.capacity,
            ),
            (
                "flashnet_volume_used_bytes",
                "Bytes that it holds.",
                volume.used,
            ),
            (
                "flashnet_volume_available_bytes",
                "Bytes that can be added.",
                volume.available,
            ),
            ("flashnet_volume_inodes", "Inodes in use.", volume.inodes),
            (
                "flashnet_pool_pages",
                "Pages in memory of the pool, at most.",
                volume.frames,
            ),
            (
                "flashnet_shared_pages",
                "Pages in the memory that is shared with mappings, now.",
                volume.shared_frames,
            ),
        ] {
            self.gauge(name, about, one(value))?;
        }
        Ok(())
    }

    /// The counters of the translation layer, whichever there are, and its streams.
    fn log(&mut self, volume: &Volume) -> fmt::Result {
        for stat in ftl::Stats::default().described() {
            let Some(&value) = volume.log.get(stat.name) else {
                continue;
            };
            let name = format!("flashnet_ftl_{}", stat.name);
            match stat.is_counted {
                true => self.counter(&name, stat.about, one(value))?,
                false => self.gauge(&name, stat.about, one(value))?,
            }
        }
        let streams = || volume.streams.iter().enumerate();
        self.gauge(
            "flashnet_stream_segments",
            "Segments that a stream of the placement policy wrote last.",
            streams().map(|(number, stream)| ([("stream", number)], stream.segments)),
        )?;
        self.gauge(
            "flashnet_stream_live_grains",
            "Live grains in the segments of a stream.",
            streams().map(|(number, stream)| ([("stream", number)], stream.live)),
        )
    }

    fn devices(&mut self, volume: &Volume) -> fmt::Result {
        let devices = || {
            let devices = volume.devices.iter();
            devices.map(|device| ([("device", device.path.as_str())], device))
        };
        self.gauge(
            "flashnet_device_up",
            "1 if the device serves, 0 if it is missing or has failed.",
            devices().map(|(labels, device)| (labels, u64::from(is_up(&device.state)))),
        )?;
        self.gauge(
            "flashnet_device_segments",
            "Segments of the device.",
            devices().map(|(labels, device)| (labels, device.segments)),
        )?;
        self.gauge(
            "flashnet_device_segments_free",
            "Free segments of the device.",
            devices().map(|(labels, device)| (labels, device.free)),
        )?;
        self.counter(
            "flashnet_device_erases",
            "How often a segment of the device was erased to be written anew.",
            devices().map(|(labels, device)| (labels, device.erases)),
        )?;
        let operations = || {
            volume.devices.iter().flat_map(|device| {
                let path = device.path.as_str();
                let operations = device.operations.iter();
                operations.map(move |(op, operations)| {
                    ([("device", path), ("op", op.as_str())], operations)
                })
            })
        };
        self.operations(
            "flashnet_device_operation",
            "operations of the device",
            operations,
        )
    }

    fn remote(&mut self, remote: &Remote) -> fmt::Result {
        self.gauge(
            "flashnet_remote_connections",
            "RDMA connections now.",
            one(remote.connections),
        )?;
        self.gauge(
            "flashnet_remote_connections_max",
            "RDMA connections that there may be.",
            one(remote.connections_max),
        )?;
        self.counter(
            "flashnet_remote_connections_accepted",
            "RDMA connections that were let in.",
            one(remote.accepted),
        )?;
        self.counter(
            "flashnet_remote_connections_refused",
            "RDMA connections that were refused at the door.",
            one(remote.refused),
        )?;
        let ended = remote.ended.iter();
        self.counter(
            "flashnet_remote_connections_ended",
            "RDMA connections that have ended, by reason.",
            ended.map(|(reason, &count)| ([("reason", reason.as_str())], count)),
        )?;
        let tenants = remote.tenants.iter();
        self.gauge(
            "flashnet_tenant_connections",
            "RDMA connections of a tenant now.",
            tenants.map(|(tenant, &count)| ([("tenant", tenant.as_str())], count)),
        )?;
        self.gauge(
            "flashnet_remote_registrations",
            "Registrations that are stored with the volume.",
            one(remote.registrations),
        )?;
        let operations = || {
            let operations = remote.operations.iter();
            operations.map(|(op, operations)| ([("op", op.as_str())], operations))
        };
        self.good_operations(
            "flashnet_remote_operation",
            "RDMA operations of peers",
            &operations,
        )?;
        let control = || std::iter::once(([] as NoLabels, &remote.control));
        self.operations(
            "flashnet_control_request",
            "control requests of clients",
            control,
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
mod tests;
