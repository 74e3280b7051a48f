//! Monitoring systems ask a running target, and nobody keeps them from it (tools/docs/watching.md).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::fault_disk::FaultDisk;
use crate::common::scrape::{PATIENCE, get, sample, scrape};
use crate::common::{Image, Target, bad, can_mount, can_serve, good, wrong};

/// How long a hang may take to be told; the disk of the tests holds on for a minute.
const HANG: Duration = Duration::from_secs(30);

/// A volume, and where its target tells of itself.
struct Place {
    image: Image,
}

impl Place {
    fn new() -> Self {
        Self {
            image: Image::new("64MiB"),
        }
    }

    fn serve(&self, more: &[&str]) -> Target {
        let ready = self.image.beside("ready");
        let options = ["--ready-file", ready.to_str().unwrap()];
        self.image.serve(&[&options, more].concat())
    }

    /// Where the target that has started last answers, if it does.
    fn metrics(&self) -> Option<SocketAddr> {
        let ready = fs::read_to_string(self.image.beside("ready")).unwrap();
        let at = ready.lines().find_map(|line| line.strip_prefix("metrics "));
        at.map(|at| at.parse().unwrap())
    }
}

/// A port that nobody has, as far as that can be had.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn a_target_tells_of_itself() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let target = place.serve(&["--metrics", "127.0.0.1:0"]);
    let at = place.metrics().unwrap();
    scrape(at);
    let (status, kind, json) = get(at, "/status");
    assert_eq!((status, &kind[..]), (200, "application/json"));
    serde_json::from_str::<tools::target::status::Status>(&json).unwrap();
    assert_eq!(get(at, "/healthz").0, 200);
    assert_eq!(get(at, "/nothing").0, 404);
    // A connection that is kept open does not keep the target from ending, and the port is free then.
    let mut kept = TcpStream::connect(at).unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert!(kept.read(&mut [0; 9]).unwrap() > 0);
    assert!(target.stop().success());
    assert!(TcpStream::connect(at).is_err());
    let target = place.serve(&["--metrics", &at.to_string()]);
    assert_eq!(place.metrics(), Some(at));
    assert!(target.stop().success());
    // Nobody is told anything who was not asked to be.
    let target = place.serve(&[]);
    assert_eq!(place.metrics(), None);
    assert!(target.stop().success());
}

/// A volume whose device has failed a write changes nothing any more, and nobody should have to try in order to know: it is told to
/// monitoring systems, to who looks and in the log, until another target opens it.
#[test]
fn a_volume_that_has_failed_is_no_health() {
    if !can_serve() || !can_mount() {
        return;
    }
    let mut disk = FaultDisk::new(64 << 20, 1).unwrap();
    let device = disk.path();
    let device = device.to_str().unwrap();
    good(&["mkfs", device]);
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let told = ["--ready-file", ready.to_str().unwrap()];
    let options = [&told[..], &["--metrics", "127.0.0.1:0"]].concat();
    let metrics = || {
        let ready = fs::read_to_string(&ready).unwrap();
        let at = ready.lines().find_map(|line| line.strip_prefix("metrics "));
        at.unwrap().parse::<SocketAddr>().unwrap()
    };
    let target = Target::start_on(&[device], &options);
    assert_eq!(get(metrics(), "/healthz").0, 200);
    disk.cut();
    bad(&["mkdir", &target.url("/directory")]);
    // What was told before is no longer good.
    std::thread::sleep(Duration::from_millis(200));
    let (status, _, said) = get(metrics(), "/healthz");
    assert_eq!(status, 503, "{said}");
    assert!(
        said.contains("the volume has failed (input/output error)"),
        "{said}"
    );
    let text = scrape(metrics());
    assert_eq!(sample(&text, "flashnet_volume_failed "), 1.0);
    let up = format!("flashnet_device_up{{device=\"{device}\"}}");
    assert_eq!(sample(&text, &up), 0.0);
    let said = good(&["top", "--once", device]);
    assert!(said.contains("the volume has failed"), "{said}");
    assert!(!target.stop().success());
    disk.restore();
    let target = Target::start_on(&[device], &options);
    assert_eq!(get(metrics(), "/healthz").0, 200);
    good(&["mkdir", &target.url("/directory")]);
    assert!(target.stop().success());
}

/// A device that hangs fails nothing, and everybody waits for it: how long is told while it lasts, and not only when it is over.
#[test]
fn a_device_that_hangs_is_told() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disk = FaultDisk::new(64 << 20, 1).unwrap();
    let device = disk.path();
    let device = device.to_str().unwrap();
    good(&["mkfs", device]);
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let options = ["--metrics", "127.0.0.1:0", "--ready-file"];
    let options = [&options[..], &[ready.to_str().unwrap()]].concat();
    let target = Target::start_on(&[device], &options);
    let ready = fs::read_to_string(&ready).unwrap();
    let at = ready.lines().find_map(|line| line.strip_prefix("metrics "));
    let at: SocketAddr = at.unwrap().parse().unwrap();
    let silent = || {
        sample(
            &scrape(at),
            &format!("flashnet_device_silent_seconds{{device=\"{device}\"}}"),
        )
    };
    disk.hold(true);
    let url = target.url("/directory");
    let made = std::thread::spawn(move || good(&["mkdir", &url]));
    let begun = Instant::now();
    while silent() < 1.1 {
        assert!(begun.elapsed() < HANG, "nobody tells");
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = good(&["top", "--once", device]);
    assert!(said.contains("has answered nothing for"), "{said}");
    disk.hold(false);
    made.join().unwrap();
    // What was told before is no longer good.
    std::thread::sleep(Duration::from_millis(200));
    assert!(silent() < 1.1);
    assert!(target.stop().success());
}

/// What was done shows in the numbers, and in those of the JSON, which are the same.
#[test]
fn numbers_are_those_of_what_was_done() {
    if !can_serve() || !can_mount() {
        return;
    }
    let place = Place::new();
    let dir = place.image.beside("mount");
    fs::create_dir(&dir).unwrap();
    let mount = ["--mount", dir.to_str().unwrap()];
    let target = place.serve(&[&["--metrics", "127.0.0.1:0"], &mount[..]].concat());
    let at = place.metrics().unwrap();
    let local = place.image.beside("local");
    fs::write(&local, vec![7; 1_000_000]).unwrap();
    good(&["put", local.to_str().unwrap(), &target.url("/file")]);
    assert_eq!(fs::read(dir.join("file")).unwrap().len(), 1_000_000);
    // What was told before is no longer good.
    std::thread::sleep(Duration::from_millis(200));
    let text = scrape(at);
    let device = place.image.path();
    let device = format!("{{device=\"{}\"", device.display());
    let one = |begin: &str| sample(&text, begin);
    assert_eq!(one(&format!("flashnet_device_up{device}}}")), 1.0);
    let writes = format!("flashnet_device_operation_bytes_total{device},op=\"write\"}}");
    assert!(one(&writes) >= 1e6);
    assert!(one("flashnet_remote_operation_bytes_total{op=\"write\"}") >= 1e6);
    assert!(one("flashnet_ftl_user_grains_total ") >= 1e6 / 4096.0);
    assert!(one("flashnet_volume_used_bytes ") >= 1e6);
    assert!(one("flashnet_mount_request_seconds_count{op=\"lookup\"}") >= 1.0);
    assert!(one("flashnet_control_request_seconds_count ") >= 1.0);
    assert!(one("process_resident_memory_bytes ") >= 1e6);
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let age = since.as_secs_f64() - one("process_start_time_seconds ");
    assert!((0.0..120.0).contains(&age), "{age}");
    let status = serde_json::from_str(&get(at, "/status").2).unwrap();
    let tools::target::status::Status { volume, .. } = status;
    assert_eq!(
        volume.capacity as f64,
        one("flashnet_volume_capacity_bytes ")
    );
    assert!(target.stop().success());
}

/// A device that is not there is no health.
#[test]
fn a_missing_device_shows() {
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (one, two, ready) = (path("one.img"), path("two.img"), path("ready"));
    good(&["mkfs", "--size", "64MiB", &one, &two]);
    let more = ["--ready-file", &ready, "--metrics", "127.0.0.1:0"];
    // What the file system begins with is on one of them, which can not be done without.
    let without = |rest: &String| Target::try_start(&[&[rest, "--degraded"], &more[..]].concat());
    let target = [&one, &two].into_iter().find_map(without);
    let target = target.expect("a target with one of the devices");
    let ready = fs::read_to_string(ready).unwrap();
    let at = ready.lines().last().unwrap().strip_prefix("metrics ");
    let at: SocketAddr = at.unwrap().parse().unwrap();
    let (status, _, why) = get(at, "/healthz");
    assert_eq!(status, 503);
    assert!(why.contains("missing"), "{why}");
    let text = scrape(at);
    let up = |value: &str| {
        let lines = text.lines();
        let lines = lines.filter(|line| line.starts_with("flashnet_device_up{"));
        lines.filter(|line| line.ends_with(value)).count()
    };
    assert_eq!((up(" 1"), up(" 0")), (1, 1), "{text}");
    assert!(target.stop().success());
}

/// The address can stand in the configuration file and among the options of the mount; the command line wins.
#[test]
fn it_is_set_up_like_other_addresses() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let config = place.image.beside("target.toml");
    fs::write(&config, "metrics = \"127.0.0.1:0\"\n").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let target = place.serve(&config);
    scrape(place.metrics().unwrap());
    assert!(target.stop().success());
    let target = place.serve(&[&config[..], &["--metrics", "none"]].concat());
    assert_eq!(place.metrics(), None);
    assert!(target.stop().success());
    wrong(&["serve", "x.img", "--metrics", "9174"]);
    let image = place.image.path();
    let same = ["--listen", "0.0.0.0:9174", "--insecure"];
    let same = [&same[..], &["--metrics", "127.0.0.1:9174"]].concat();
    let said = wrong(&[&["serve", image.to_str().unwrap()], &same[..]].concat());
    assert!(said.contains("--metrics"), "{said}");
    assert!(said.contains("127.0.0.1:9174"), "{said}");

    if !can_mount() {
        return;
    }
    let at = free_port();
    let dir = place.image.beside("mount");
    fs::create_dir(&dir).unwrap();
    let (image, dir) = (image.to_str().unwrap(), dir.to_str().unwrap());
    good(&["mount", image, dir, "-o", &format!("metrics={at}")]);
    scrape(at);
    good(&["umount", dir]);
    assert!(TcpStream::connect(at).is_err());
}

/// Who connects and says nothing, or says it slowly, or does not take the answer, keeps nobody from asking (I16).
#[test]
fn slow_connections_keep_nobody_out() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let target = place.serve(&["--metrics", "127.0.0.1:0"]);
    let at = place.metrics().unwrap();
    let mut slow = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(at).unwrap();
        let said: &[u8] = match n % 3 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\nX: ",
            _ => &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100),
        };
        // Some have been sent away meanwhile.
        let _ = stream.write_all(said);
        slow.push(stream);
    }
    let begun = Instant::now();
    for _ in 0..10 {
        scrape(at);
        for stream in &mut slow {
            let _ = stream.write(b"x");
        }
    }
    let took = begun.elapsed();
    assert!(took < 2 * PATIENCE, "{took:?}");
    let open = fs::read_dir(format!("/proc/{}/fd", target.pid())).unwrap();
    let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets = open.filter(|path| path.to_string_lossy().starts_with("socket:"));
    let sockets = sockets.count();
    assert!(sockets < 100, "{sockets} sockets are kept");
    good(&["ls", &target.url("/")]);
    assert!(target.stop().success());
}

/// A target that takes over answers at the same port; what a stranger has there is an error for one that nobody waits for, and none
/// for one that serves already.
#[test]
fn ports_that_are_taken() {
    if !can_serve() {
        return;
    }
    let place = Place::new();
    let image = place.image.path();
    let image = image.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let strangers = at.to_string();
    let fresh = ["serve", image, "--listen", "127.0.0.1:0", "--metrics"];
    let said = bad(&[&fresh[..], &[&strangers]].concat());
    for part in [&strangers[..], "taken", "--metrics"] {
        assert!(said.contains(part), "{said}");
    }

    let ours = free_port().to_string();
    let first = place.serve(&["--metrics", &ours]);
    let session = first.session();
    let kept = TcpStream::connect(place.metrics().unwrap()).unwrap();
    let second = place.serve(&["--metrics", &ours, "--replace"]);
    assert!(first.ended().success());
    assert_eq!(place.metrics().unwrap().to_string(), ours);
    scrape(place.metrics().unwrap());
    // An address that this machine does not have is known to be wrong before anybody ends.
    let said = bad(&["serve", image, "--replace", "--metrics", "192.0.2.1:9174"]);
    assert!(said.contains("192.0.2.1:9174"), "{said}");
    assert!(said.contains("--metrics"), "{said}");
    scrape(place.metrics().unwrap());
    // With the port of a stranger it serves, and has no metrics.
    let third = place.serve(&["--metrics", &strangers, "--replace"]);
    assert!(second.ended().success());
    assert_eq!(place.metrics(), None);
    assert_eq!(third.address, session.address());
    good(&["ls", &third.url("/")]);
    assert!(third.stop().success());
    drop((session, kept));
}
