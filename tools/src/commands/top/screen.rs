//! What is shown of a target: the lines of a screen, or of a block of text.

use std::path::PathBuf;
use std::time::SystemTime;

use super::line::{Kind, Line};
use super::rates::Looks;
use super::{clients, head, media};

/// Which span of time is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// That since the last look, as rates.
    Latest,
    /// That since the start of the target, as totals.
    All,
}

/// All of them. What is `said` stands behind the span of time that the figures are of.
pub(super) fn lines(
    looks: &Looks,
    shown: Shown,
    devices: &[PathBuf],
    at: SystemTime,
    said: &str,
) -> Vec<Line> {
    let span = match shown {
        Shown::Latest => looks.latest(),
        Shown::All => looks.all(),
    };
    let clock = humantime::format_rfc3339_seconds(at).to_string();
    let mut lines = head::head(looks, devices, &clock);
    lines.extend(head::warnings(span.now));
    let length = match span.is_all {
        true => format!("since the start, {}", head::span(span.seconds)),
        false => format!("in the last {:.1} s", span.seconds),
    };
    lines.push(Line::new(Kind::Title, format!("{length}{said}")));
    let tables = [
        clients::requests(&span),
        clients::remote(&span),
        media::devices(&span),
        media::written(&span, looks),
        media::pages(&span),
    ];
    lines.extend(tables.into_iter().flatten());
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::top::line::fit;
    use crate::target::status::{Device, Mount, Operations, Status};

    fn operations(count: u64, bytes: u64, microseconds: u64) -> Operations {
        let meter = ftl::Meter::default();
        for _ in 0..count {
            meter.note(Duration::from_micros(microseconds), Some(bytes));
        }
        meter.read().into()
    }

    /// A target after so many seconds of the same load.
    fn status(seconds: u64) -> Status {
        let of = |count: u64, bytes, time| operations(count * seconds, bytes, time);
        let mut status = Status {
            version: "0.1.0".to_owned(),
            ..Status::default()
        };
        status.process.pid = 4711;
        status.process.uptime = seconds as f64;
        status.process.cpu = seconds as f64 * 0.4;
        status.process.resident = 300 << 20;
        let volume = &mut status.volume;
        (volume.capacity, volume.used, volume.available) = (4 << 30, 1 << 30, 3 << 30);
        (volume.inodes, volume.frames) = (1234, 65_536);
        let log = [
            ("user_grains", 100),
            ("header_grains", 10),
            ("fills", 50),
            ("evictions", 5),
        ];
        for (name, rate) in log {
            volume.log.insert(name.to_owned(), rate * seconds);
        }
        volume.log.insert("segments_free".to_owned(), 400);
        volume.log.insert("dirty_pages".to_owned(), 17);
        let kinds = [
            ("read", of(50, 4096, 90)),
            ("write", of(10, 45_056, 300)),
            ("flush", of(10, 0, 1500)),
        ];
        volume.devices.push(Device {
            path: "/srv/flash/volume.img".to_owned(),
            state: "live".to_owned(),
            segments: 512,
            free: 400,
            erases: 3,
            silent: 0.5,
            operations: kinds.map(|(name, done)| (name.to_owned(), done)).into(),
        });
        let requests = [
            ("getattr", of(20, 0, 2)),
            ("statfs", operations(7, 0, 1)),
            ("write", of(100, 4096, 12)),
        ];
        status.mount = Some(Mount {
            path: "/mnt/flash".to_owned(),
            requests: requests.map(|(name, done)| (name.to_owned(), done)).into(),
        });
        let remote = &mut status.remote;
        remote.address = Some("127.0.0.1:7174".to_owned());
        (remote.connections, remote.connections_max) = (5, 16_384);
        (remote.accepted, remote.registrations) = (6, 2);
        remote.tenants = [("alpha", 1), ("anonymous", 4), ("beta", 0)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        let done = [("read", of(2000, 4096, 5)), ("atomic", of(0, 0, 0))];
        remote.operations = done.map(|(name, done)| (name.to_owned(), done)).into();
        remote.control = of(1, 0, 40);
        status
    }

    fn shown(looks: &Looks, shown: Shown) -> Vec<Line> {
        let devices = [PathBuf::from("volume.img")];
        lines(looks, shown, &devices, SystemTime::UNIX_EPOCH, "")
    }

    fn text(lines: &[Line]) -> String {
        let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }

    fn pair() -> Looks {
        let mut looks = Looks::first(status(100));
        looks.again(status(102));
        looks
    }

    #[test]
    fn rates() {
        let expected = "\
1970-01-01T00:00:00Z flashnet 0.1.0, pid 4711, up 1m 42s: volume.img
mounted on /mnt/flash, RDMA at 127.0.0.1:7174
1.0 GiB used, 3.0 GiB available of 4.0 GiB; 1234 inodes; 400 of 512 segments free
processor 40 %, memory 300 MiB
in the last 2.0 s
mount                  /s    MiB/s     mean      p99 failed/s
write                 100      0.4     12µs     16µs        0
getattr                20        0      2µs      2µs        0
remote                 /s    MiB/s     mean      p99 failed/s
read                 2000      7.8      5µs      8µs
control                 1        0     40µs     64µs        0
5 of 16384 connections, 0/s let in, 0/s refused, 2 registrations: anonymous 4, alpha 1
device        r/s  MiB/s   mean    p99    w/s  MiB/s   mean    p99    f/s   mean failed   free  state
volume.img     50    0.2   90µs  128µs     10    0.4  300µs  512µs     10 1.50ms      0    400   live
grains/s           user  relocated     header checkpoint         WA    WA ever
                    100          0         10          0       1.10       1.10
pages/s           fills  evictions      waits      dirty     frames
                     50          5          0         17      65536
";
        assert_eq!(text(&shown(&pair(), Shown::Latest)), expected.trim_end());
    }

    #[test]
    fn totals() {
        let expected = "\
1970-01-01T00:00:00Z flashnet 0.1.0, pid 4711, up 1m 42s: volume.img
mounted on /mnt/flash, RDMA at 127.0.0.1:7174
1.0 GiB used, 3.0 GiB available of 4.0 GiB; 1234 inodes; 400 of 512 segments free
processor 40 %, memory 300 MiB
since the start, 1m 42s
mount               count      MiB     mean      p99   failed
write               10200       40     12µs     16µs        0
getattr              2040        0      2µs      2µs        0
statfs                  7        0      1µs      1µs        0
remote              count      MiB     mean      p99   failed
read                 204k      797      5µs      8µs
control               102        0     40µs     64µs        0
5 of 16384 connections, 6 let in, 0 refused, 2 registrations: anonymous 4, alpha 1
device      reads    MiB   mean    p99 writes    MiB   mean    p99  flush   mean failed   free  state
volume.img   5100     20   90µs  128µs   1020     44  300µs  512µs   1020 1.50ms      0    400   live
grains             user  relocated     header checkpoint         WA    WA ever
                  10200          0       1020          0       1.10       1.10
pages             fills  evictions      waits      dirty     frames
                   5100        510          0         17      65536
";
        assert_eq!(text(&shown(&pair(), Shown::All)), expected.trim_end());
    }

    /// What an operator should not overlook is said above all figures.
    #[test]
    fn what_is_wrong() {
        let mut ill = status(100);
        ill.volume.failure = Some("input/output error".to_owned());
        ill.volume.suspect = true;
        ill.volume.devices[0].state = "failed".to_owned();
        ill.volume.devices[0].silent = 12.0;
        ill.volume.log.insert("fills_failed".to_owned(), 3);
        ill.volume.log.insert("damaged".to_owned(), 2);
        let lines = shown(&Looks::first(ill), Shown::Latest);
        let warnings = lines.iter().filter(|line| line.kind == Kind::Warning);
        let warnings: Vec<&str> = warnings.map(|line| line.text.as_str()).collect();
        let expected = [
            "the volume has failed (input/output error): nothing is changed any more until another target opens it",
            "something is wrong with what the volume holds: let flashnet fsck look at it when it is not served",
            "/srv/flash/volume.img is failed",
            "/srv/flash/volume.img has answered nothing for 12 s",
            "since the start 3 reads of pages failed, of 2 the checksum did not fit",
        ];
        assert_eq!(warnings, expected);
    }

    /// A target that tells nothing, much, or nonsense is shown on a terminal of any size, and does not command it.
    #[test]
    fn anything_on_any_terminal() {
        let mut crowded = status(102);
        for tenant in 0..100_000 {
            let name = format!("tenant-{tenant}\u{1b}[2J");
            crowded.remote.tenants.insert(name, tenant);
        }
        let device = crowded.volume.devices[0].clone();
        crowded.volume.devices = vec![device; 16];
        crowded.volume.devices[3].path = "\u{9b}2J".repeat(100_000);
        crowded.volume.devices[4].state = "\u{7}".to_owned();
        let mut nonsense = status(3);
        nonsense.process.uptime = 1e300;
        nonsense.process.cpu = -1e300;
        nonsense.volume.used = u64::MAX;
        nonsense.volume.frames = u64::MAX;
        let log = &mut nonsense.volume.log;
        log.values_mut().for_each(|count| *count = u64::MAX);
        let read = nonsense.volume.devices[0].operations.get_mut("read");
        let read = read.unwrap();
        (read.seconds, read.count, read.classes) = (1e300, u64::MAX, vec![u64::MAX; 99]);
        let mut endless = status(3);
        let read = endless.volume.devices[0].operations.get_mut("read");
        let read = read.unwrap();
        (read.count, read.classes) = (u64::MAX, vec![1 << 63; 26]);
        let mut looks = pair();
        for status in [Status::default(), status(104), crowded, nonsense, endless] {
            looks.again(status);
            for span in [Shown::Latest, Shown::All] {
                let all = shown(&looks, span);
                for line in &all {
                    assert!(!line.text.chars().any(char::is_control), "{line:?}");
                }
                for (width, height) in [(0, 0), (1, 1), (20, 5), (80, 24), (1000, 1000)] {
                    let fitted = fit(all.clone(), width, height);
                    assert!(fitted.len() <= height);
                    for line in fitted {
                        assert!(line.text.chars().count() <= width, "{line:?}");
                    }
                }
            }
        }
    }
}
