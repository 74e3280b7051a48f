//! Load on a group: a `flashnet chain bench`, which says how many records are acknowledged, and in the end reads all back.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::Value;

use super::until;

/// So many records more are proof that writes go on.
const RECORDS: u64 = 40;

/// A bench that runs; killed when dropped.
pub struct Load {
    child: Child,
    told: Arc<Mutex<Vec<Value>>>,
    reader: Option<JoinHandle<()>>,
    log: PathBuf,
}

impl Load {
    /// Of a child with `--json --progress` whose errors go to `log`.
    pub fn of(mut child: Child, log: PathBuf) -> Self {
        let told: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (tell, lines) = (Arc::clone(&told), child.stdout.take().expect("it is piped"));
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("lines of JSON");
                tell.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        Self {
            child,
            told,
            reader: Some(reader),
            log,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said last.
    pub fn last(&self) -> Option<Value> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.last().cloned()
    }

    /// Records that are acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.last()
            .and_then(|line| line["acknowledged"].as_u64())
            .unwrap_or(0)
    }

    /// Waits until records that are handed over from now on are acknowledged.
    pub fn goes_on(&mut self, after: &str) {
        let before = self.acknowledged();
        let more = until(|| {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!(
                    "after {after}: the bench has ended, {status}: {}",
                    self.errors()
                );
            }
            (self.acknowledged() >= before + RECORDS).then_some(())
        });
        assert!(
            more.is_some(),
            "after {after}: nothing is acknowledged any more; {before} records were"
        );
    }

    /// Ends it in order. It has read back everything that was acknowledged, from all members.
    pub fn finish(mut self) -> Value {
        signal(self.pid(), libc::SIGINT);
        let status = self.ended();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        assert!(status.success(), "{status}: {}", self.errors());
        let report = self.last().expect("it tells something at the end");
        assert!(report["compared"].as_u64() > Some(0), "{report}");
        report
    }

    /// Waits until it ends, which is not in order, and tells what it says of that.
    pub fn fails(mut self) -> String {
        let status = self.ended();
        assert!(!status.success(), "{:?}", self.last());
        self.errors()
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        signal(self.pid(), libc::SIGCONT);
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        until(|| self.child.try_wait().unwrap()).expect("it ends")
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a child that has not been waited for.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: no memory is touched.
    let sent = unsafe { libc::kill(pid as i32, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}
