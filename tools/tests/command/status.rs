//! What a running target tells of itself is what was done: requests of the mount, operations of peers, and what devices were asked
//! for, each counted once; and whose connections there are.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::client::{add, create};
use crate::common::{Image, Target, can_mount, can_serve, good};
use tools::client::Client;
use tools::target::status::{Operations, Status};
use tools::target::{PATIENCE, ask_status};

const GRAIN: u64 = 4096;

fn status(devices: &[PathBuf]) -> Status {
    let told = ask_status(devices, PATIENCE).unwrap();
    told.expect("a target serves the volume")
}

/// What is told of the only device.
fn device<'a>(status: &'a Status, operation: &str) -> &'a Operations {
    &status.volume.devices[0].operations[operation]
}

fn assert_adds_up(operations: &BTreeMap<String, Operations>) {
    for (name, all) in operations {
        assert_eq!(all.classes.iter().sum::<u64>(), all.count, "{name}");
        assert!(all.failed <= all.count && all.count > 0, "{name}: {all:?}");
    }
}

/// Grains on their way to a page of the right alignment.
#[repr(C, align(4096))]
struct Grain([u8; GRAIN as usize]);

/// Direct writes and reads of a file on the mount, syncs, and a name that is not there.
#[test]
fn requests_of_the_mount() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let mount = image.beside("mount");
    fs::create_dir(&mount).unwrap();
    // What is read must come from the device.
    let options = ["--mount", mount.to_str().unwrap(), "--pool", "4MiB"];
    let target = image.serve(&options);
    let devices = [image.path()];
    let path = mount.join("file");
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let before = status(&devices);
    assert_eq!(before.process.pid, target.pid());
    assert_eq!(before.mount.as_ref().unwrap().path, mount.to_str().unwrap());
    let mut grain = Grain([7; GRAIN as usize]);
    for n in 0..2000 {
        file.write_all_at(&grain.0, n * GRAIN).unwrap();
        if n % 100 == 0 {
            file.sync_data().unwrap();
        }
    }
    for n in 0..1000 {
        file.read_exact_at(&mut grain.0, n * GRAIN).unwrap();
    }
    // There is none, which is an answer; there can be none, which is a refusal.
    assert!(fs::metadata(mount.join("nothing")).is_err());
    assert!(fs::metadata(mount.join("x".repeat(300))).is_err());
    file.sync_all().unwrap();
    let now = status(&devices);
    assert_eq!(now.process.pid, before.process.pid);
    assert!(now.process.uptime > before.process.uptime && now.process.cpu > before.process.cpu);

    let requests = |status: &Status, name: &str| {
        let all = &status.mount.as_ref().unwrap().requests;
        all.get(name).cloned().unwrap_or_default()
    };
    let done = |name| requests(&now, name).since(&requests(&before, name));
    let counts = |name| {
        let done = done(name);
        (done.count, done.failed, done.bytes)
    };
    assert_eq!(counts("write"), (2000, 0, 2000 * GRAIN));
    assert_eq!(counts("read"), (1000, 0, 1000 * GRAIN));
    assert_eq!(counts("fsync"), (21, 0, 0));
    assert_eq!(counts("lookup"), (2, 1, 0));
    assert_eq!(counts("unlink"), (0, 0, 0));
    assert!(done("write").seconds > 0.0 && done("write").quantile(0.99).is_some());
    assert_adds_up(&now.mount.as_ref().unwrap().requests);

    // What the file holds is what the volume holds more.
    assert_eq!(now.volume.used - before.volume.used, 2000 * GRAIN);
    assert_eq!(now.volume.inodes, before.volume.inodes);
    assert!(now.volume.used + now.volume.available <= now.volume.capacity);
    // The engine and the devices agree: grains of the log, and those of checkpoints.
    let log = |status: &Status, name: &str| status.volume.log[name];
    let written = |status: &Status| {
        let kinds = ["user", "relocated", "header", "checkpoint"];
        let grains = kinds.map(|kind| log(status, &format!("{kind}_grains")));
        grains.iter().sum::<u64>() * GRAIN
    };
    // Some for names and sizes.
    let user = log(&now, "user_grains") - log(&before, "user_grains");
    assert!((2000..2200).contains(&user), "{user}");
    assert_eq!(
        device(&now, "write").bytes - device(&before, "write").bytes,
        written(&now) - written(&before)
    );
    assert!(
        device(&now, "read").bytes > 900 * GRAIN,
        "the pool is small"
    );
    assert!(log(&now, "fills") >= device(&now, "read").count);
    let durable = device(&now, "write").count + device(&now, "flush").count;
    assert!(durable > 21);
    assert_adds_up(&now.volume.devices[0].operations);
    let of_streams: u64 = now.volume.streams.iter().map(|s| s.segments).sum();
    let of_device = &now.volume.devices[0];
    assert_eq!(of_streams + of_device.free, of_device.segments);
    drop(file);
    assert!(target.stop().success());
    assert!(ask_status(&devices, PATIENCE).unwrap().is_none());
}

/// One-sided operations, control requests, and connections: of strangers and of tenants.
#[test]
fn operations_of_peers() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let key = image.beside("alpha.key");
    good(&["token", "key", key.to_str().unwrap()]);
    let config = image.beside("target.toml");
    let text = format!("[[tenant]]\nname = \"alpha\"\nkey_file = {key:?}\n");
    fs::write(&config, text).unwrap();
    let options = ["--insecure", "--config", config.to_str().unwrap()];
    let target = image.serve(&options);
    let devices = [image.path()];
    let before = status(&devices).remote;
    assert_eq!(before.address, Some(target.address.to_string()));
    assert_eq!((before.connections, before.accepted), (0, 0));
    let nobody = [("alpha", 0), ("anonymous", 0)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(before.tenants, BTreeMap::from(nobody.clone()));

    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 1 << 20);
    let opened = status(&devices).remote;
    for n in 0..10 {
        file.write_at(&[n; 1000], u64::from(n) * 3000).unwrap();
    }
    let mut bytes = [0; 500];
    for n in 0..20 {
        file.read_at(&mut bytes, n * 700).unwrap();
    }
    file.atomic(8, add(1)).unwrap();
    let now = status(&devices).remote;
    let done = |name: &str| now.operations[name].since(&opened.operations[name]);
    assert_eq!(done("write").bytes, 10_000);
    assert_eq!(done("read").bytes, 20 * 500);
    assert!(done("write").count >= 10 && done("read").count >= 20);
    assert_eq!((done("atomic").count, done("atomic").bytes), (1, 8));
    // The WRITEs were placed at once.
    for name in ["read", "atomic"] {
        let done = done(name);
        assert!(done.seconds > 0.0 && done.failed == 0, "{name}: {done:?}");
        assert!(done.quantile(0.99).is_some(), "{name}: {done:?}");
    }
    let synced = client.options().write(true).sync(true).open("/file");
    let synced = synced.unwrap();
    synced.write_at(&[1; 1000], 0).unwrap();
    let then = status(&devices).remote;
    let durable = then.operations["write"].since(&now.operations["write"]);
    assert!(durable.seconds > 0.0, "{durable:?}");
    let now = then;
    // Control requests are SENDs.
    let sent = &now.operations["send"];
    assert_eq!(
        (now.control.count, now.control.bytes),
        (sent.count, sent.bytes)
    );
    assert!(now.control.count > 0 && now.control.failed == 0);
    assert!(client.open("/nothing").is_err());
    let refused = status(&devices).remote;
    assert_eq!(refused.control.failed, 1);
    assert_eq!((now.connections, now.accepted, now.refused), (1, 1, 0));
    assert_eq!(now.tenants["anonymous"], 1);

    // What was done for those that have gone is not forgotten.
    drop((file, synced, client));
    let start = Instant::now();
    let mut gone = status(&devices).remote;
    while gone.connections > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "{gone:?}");
        assert_eq!(gone.operations["write"], now.operations["write"]);
        std::thread::sleep(Duration::from_millis(10));
        gone = status(&devices).remote;
    }
    assert_eq!(gone.tenants, BTreeMap::from(nobody));
    assert_eq!(gone.operations["write"], now.operations["write"]);
    assert_eq!(gone.operations["atomic"], now.operations["atomic"]);
    let ended: u64 = gone.ended.values().sum();
    assert_eq!((gone.ended["disconnected"], ended), (1, 1));
}

/// Of several devices each has its own figures.
#[test]
fn several_devices() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let devices = ["a.img", "b.img"].map(|name| image.beside(name));
    let paths = devices.each_ref().map(|path| path.to_str().unwrap());
    good(&["mkfs", "--size", "64MiB", paths[0], paths[1]]);
    let target = Target::start_on(&paths, &[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 8 << 20);
    file.write_at(&vec![1; 8 << 20], 0).unwrap();
    file.flush().unwrap();
    let told = status(&devices).volume;
    assert_eq!(told.devices.len(), 2);
    for device in &told.devices {
        assert_eq!(device.state, "live");
        assert!(paths.contains(&device.path.as_str()));
        let bytes = device.operations["write"].bytes;
        assert!(bytes > 3 << 20, "the log is striped: {bytes}");
        assert_adds_up(&device.operations);
    }
}
