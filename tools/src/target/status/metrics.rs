//! A [`Status`] as metrics. `tools/docs/watching.md` lists them. All are from the same status, so they fit together. What a target
//! does not have (a mount) has no family.

use std::fmt;

use super::health::{self, is_up};
use super::{Process, Remote, Status, Volume};
use crate::exporter::Told;
use crate::exporter::families::{Families, NoLabels, one};

impl Told for Status {
    fn version(&self) -> &str {
        &self.version
    }

    fn process(&self) -> &Process {
        &self.process
    }

    fn health(&self) -> Result<(), String> {
        health::of(self)
    }

    fn tell(&self, families: &mut Families<'_>) -> fmt::Result {
        let Self {
            reactor_calls,
            volume,
            mount,
            remote,
            ..
        } = self;
        let calls = reactor_calls.iter().enumerate();
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

impl Families<'_> {
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
        self.gauge(
            "flashnet_volume_failed",
            "1 if the volume has failed: nothing is changed any more until it is opened again.",
            one(u64::from(volume.failure.is_some())),
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
            "flashnet_device_silent_seconds",
            "For how long the device has answered nothing of what it was asked for; 0 if nothing is pending.",
            devices().map(|(labels, device)| (labels, device.silent)),
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

#[cfg(test)]
mod tests;
