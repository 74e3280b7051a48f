//! A group of real processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::load::signal;
use super::{Load, Place, until};
use crate::common::FLASHNET;

/// Where members listen.
const PORT: u16 = 7181;
/// Nobody is taken for dead because the machine has other things to do.
const MEMBERS: [&str; 8] = [
    "--period",
    "100ms",
    "--misses",
    "10",
    "--patience",
    "500ms",
    "--read-lease",
    "600ms",
];
const CLIENTS: [&str; 4] = ["--period", "100ms", "--misses", "20"];

/// Members of a group, and where everything is. Killed when dropped.
pub struct Group {
    dir: TempDir,
    /// As `--store` takes it.
    pub store: String,
    places: BTreeMap<u32, Place>,
    client: Place,
    memory: Memory,
    running: BTreeMap<u32, Child>,
    loads: u32,
}

/// Where members have their memory.
enum Memory {
    None,
    Files,
}

/// What `chain status` says.
#[derive(Clone, Debug)]
pub struct Status(pub Value);

impl Status {
    pub fn epoch(&self) -> u64 {
        self.0["epoch"].as_u64().unwrap()
    }

    pub fn is_active(&self) -> bool {
        self.0["active"] == true
    }

    /// The chain, head first.
    pub fn chain(&self) -> Vec<u32> {
        let members = self.0["members"].as_array().unwrap().iter();
        let mut chain: Vec<(u64, u32)> = members
            .filter_map(|member| Some((member["place"].as_u64()?, number(member))))
            .collect();
        chain.sort_unstable();
        chain.into_iter().map(|(_, member)| member).collect()
    }

    /// What a member does.
    pub fn state(&self, id: u32) -> String {
        let members = self.0["members"].as_array().unwrap();
        let member = members.iter().find(|member| number(member) == id);
        member
            .map_or("", |member| member["state"].as_str().unwrap())
            .to_owned()
    }

    /// Whether the group is active with just these, all of them serving.
    pub fn serves(&self, ids: &[u32]) -> bool {
        let chain: BTreeSet<u32> = self.chain().into_iter().collect();
        self.is_active()
            && chain == ids.iter().copied().collect()
            && ids.iter().all(|id| self.state(*id) == "serving")
    }
}

fn number(member: &Value) -> u32 {
    member["member"].as_u64().unwrap() as u32
}

impl Group {
    /// On this machine, configured in a file.
    pub fn local() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store").to_str().unwrap().to_owned();
        let places = (1..=9).map(|id| (id, Place::local())).collect();
        Self::new(dir, store, places, Place::local())
    }

    /// With members, commands and a store elsewhere.
    pub fn at(store: String, places: BTreeMap<u32, Place>, client: Place) -> Self {
        Self::new(tempfile::tempdir().unwrap(), store, places, client)
    }

    fn new(dir: TempDir, store: String, places: BTreeMap<u32, Place>, client: Place) -> Self {
        Self {
            dir,
            store,
            places,
            client,
            memory: Memory::Files,
            running: BTreeMap::new(),
            loads: 0,
        }
    }

    /// Makes it, with small memories.
    pub fn create(&mut self, members: &str, more: &[&str]) {
        let sizes = ["--data", "256KiB", "--ring", "128KiB", "--locks", "8"];
        let mut options = vec!["create", "--members", members];
        options.extend(sizes);
        options.extend(more);
        if more.contains(&"--volatile") {
            self.memory = Memory::None;
        }
        self.good(&options);
    }

    /// Makes it, starts the members 1, 2 and 3, and waits until they serve.
    pub fn up(&mut self, more: &[&str]) {
        self.create("1,2,3", more);
        for id in 1..=3 {
            self.start(id);
        }
        self.serves(&[1, 2, 3], "the start");
    }

    /// The file that a member has its memory in.
    pub fn memory(&self, id: u32) -> PathBuf {
        self.dir.path().join(format!("memory{id}"))
    }

    /// Starts a member, and waits until it listens.
    pub fn start(&mut self, id: u32) {
        let memory = match self.memory {
            Memory::Files => Some(self.memory(id)),
            Memory::None => None,
        };
        self.start_with(id, memory.as_deref(), &[]);
    }

    /// Starts a member with its memory in this file, and more options; what it says then.
    pub fn start_with(&mut self, id: u32, memory: Option<&Path>, more: &[&str]) -> Value {
        let place = &self.places[&id];
        let mut command = place.command(FLASHNET);
        command
            .args(["--json", "chain", "serve", "--store", &self.store])
            .args(["--member", &id.to_string()])
            .args(["--listen", &format!("{}:{PORT}", place.host)])
            .args(MEMBERS)
            .args(more)
            .env("FLASHNET_LOG", "offload_chain=debug,info");
        if let Some(memory) = memory {
            command.arg("--memory").arg(memory);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(self.log(&format!("member{id}")))
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let before = self.running.insert(id, child);
        assert!(before.is_none(), "member {id} runs already");
        assert!(!line.is_empty(), "member {id} does not start");
        serde_json::from_str(&line).unwrap()
    }

    fn log_at(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    /// What a member has told.
    pub fn log_of(&self, id: u32) -> PathBuf {
        self.log_at(&format!("member{id}"))
    }

    fn log(&self, name: &str) -> File {
        let path = self.log_at(name);
        let log = File::options().create(true).append(true).open(path);
        log.unwrap()
    }

    /// SIGKILL for a member.
    pub fn kill(&mut self, id: u32) {
        let mut child = self.running.remove(&id).expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a member to end, and waits until it has.
    pub fn stop(&mut self, id: u32) -> ExitStatus {
        let mut child = self.running.remove(&id).expect("it runs");
        signal(child.id(), libc::SIGTERM);
        let status = until(|| child.try_wait().unwrap());
        status.unwrap_or_else(|| panic!("member {id} does not end"))
    }

    /// Stops a member where it is.
    pub fn freeze(&self, id: u32) {
        self.freeze_process(self.running[&id].id());
    }

    /// Stops a client where it is.
    pub fn freeze_client(&self, load: &Load) {
        self.freeze_process(load.pid());
    }

    /// Not where it holds the lock of a store in a file, which would stop everybody.
    fn freeze_process(&self, pid: u32) {
        let lock = File::options()
            .write(true)
            .open(format!("{}.lock", self.store));
        let stopped = until(|| {
            signal(pid, libc::SIGSTOP);
            // Its threads stop one by one.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let Ok(lock) = &lock else { return Some(()) };
            // Whoever else has it gives it free again.
            for _ in 0..100 {
                if lock.try_lock().is_ok() {
                    lock.unlock().unwrap();
                    return Some(());
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            signal(pid, libc::SIGCONT);
            None
        });
        assert!(
            stopped.is_some(),
            "process {pid} holds the lock of the store"
        );
    }

    /// Waits until the lease of a member that has left the chain is over: the store has nothing of it any more.
    pub fn lease_ends(&self, id: u32) {
        let is_over = |status: &Status| status.state(id) == "not serving";
        self.wait(&format!("the end of the lease of member {id}"), is_over);
    }

    /// Lets it go on.
    pub fn thaw(&self, id: u32) {
        signal(self.running[&id].id(), libc::SIGCONT);
    }

    /// `flashnet chain ...`, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.client.command(FLASHNET);
        command
            .args(["--json", "chain", arguments[0], "--store", &self.store])
            .args(&arguments[1..]);
        command
    }

    /// Runs `flashnet chain ...`.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .output()
            .expect("the program starts")
    }

    /// What it says when it succeeds.
    pub fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says when it fails as it should.
    pub fn bad(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        errors
    }

    /// What the group is doing.
    pub fn status(&self) -> Status {
        Status(serde_json::from_str(&self.good(&["status"])).unwrap())
    }

    /// Waits until the group does this; its state then.
    pub fn wait(&self, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        let found = until(|| {
            // Without its store it says nothing.
            let output = self.run(&["status"]);
            let status = serde_json::from_slice(&output.stdout).map(Status);
            status.ok().filter(|status| is(status))
        });
        found.unwrap_or_else(|| panic!("waited in vain for {what}: {:?}", self.run(&["status"])))
    }

    /// Waits until the group is active with just these members.
    pub fn serves(&self, ids: &[u32], after: &str) -> Status {
        let what = format!("members {ids:?} after {after}");
        self.wait(&what, |status| status.serves(ids))
    }

    /// Starts a bench.
    pub fn load(&mut self, more: &[&str]) -> Load {
        self.loads += 1;
        let name = format!("bench{}", self.loads);
        let child = (self.command(&["bench", "--size", "512B", "--depth", "4"]))
            .args(["--seconds", "3600", "--progress", "20ms", "--pause", "20ms"])
            .args(CLIENTS)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(self.log(&name))
            .spawn()
            .expect("the program starts");
        let log = self.dir.path().join(format!("{name}.log"));
        let mut load = Load::of(child, log);
        load.goes_on("the start of the load");
        load
    }

    /// All members are alike.
    pub fn verify(&self, members: usize) {
        self.verify_with(members, &[]);
    }

    /// The same with more options.
    pub fn verify_with(&self, members: usize, more: &[&str]) {
        let mut arguments = vec!["verify"];
        arguments.extend(CLIENTS);
        arguments.extend(more);
        let said: Value = serde_json::from_str(&self.good(&arguments)).unwrap();
        assert_eq!(said["differences"], Value::Array(Vec::new()), "{said}");
        assert_eq!(said["members"], members, "{said}");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.dir.path())
                .into_iter()
                .flatten()
                .flatten()
            {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "log") {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let lines: Vec<&str> = text.lines().collect();
                    let last = &lines[lines.len().saturating_sub(60)..];
                    eprintln!("== {}\n{}", path.display(), last.join("\n"));
                }
            }
        }
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
