//! Processor time of this process and of a server that it started.

use std::time::Duration;

/// User and system time that process `pid` (None: this one) has used, all threads.
///
/// Read from `/proc/PID/stat`, so in clock ticks: fine for runs of a second and more.
pub fn used(pid: Option<u32>) -> Option<Duration> {
    let root = pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
    let stat = std::fs::read_to_string(format!("{root}/stat")).ok()?;
    // Fields 14 and 15, counted behind the command name, which may hold spaces.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // SAFETY: sysconf has no memory arguments.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}
