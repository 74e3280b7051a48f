//! `mount`: starts a target in the background, and returns when its mount is there.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{remount, utab};
use crate::cli;
use crate::cli::mount::MountOptions;
use crate::devices;

/// Runs the command.
pub(super) fn run(options: &cli::mount::Mount) -> Result<()> {
    let mut said = MountOptions::default();
    let mut known = Vec::new();
    // Then mount(8) repeats what the mount table says, words of the kernel's own among it.
    let remount = |list: &String| list.split(',').any(|option| option == "remount");
    let sloppy = options.sloppy || options.options.iter().any(remount);
    for list in &options.options {
        known.extend(said.add(list, sloppy)?);
    }
    let spec = options.spec.display();
    let dir = absolute(&options.dir)?;
    // The target works in / and must find them again.
    let mut paths = Vec::new();
    for path in devices::from_spec(&options.spec)
        .iter()
        .chain(&said.devices)
    {
        paths.push(absolute(path)?);
    }
    known.retain(|option| !option.starts_with("device="));
    // mount(8): then a device that does not exist is no error, and it leaves that to its helpers.
    let is_missing = |path: &PathBuf| matches!(path.try_exists(), Ok(false));
    if known.contains(&"nofail") && paths.iter().any(is_missing) {
        return Ok(());
    }
    if options.fake {
        return Ok(());
    }
    if said.remount {
        return remount::run(&dir, &said);
    }
    start(&paths, &dir, &known.join(","))
        .with_context(|| format!("cannot mount {spec} on {}", dir.display()))?;
    if !options.no_mtab {
        utab::enter(&dir);
    }
    if options.verbose {
        println!("{spec} mounted on {}", dir.display());
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
}

/// Starts a target on `paths` that outlives this process once `dir` is mounted.
fn start(paths: &[PathBuf], dir: &Path, list: &str) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut arguments: Vec<OsString> = ["--json", "serve", "--background", "--mount"]
        .map(OsString::from)
        .into();
    arguments.push(dir.into());
    arguments.extend(["-o".into(), list.into(), "--".into()]);
    arguments.extend(paths.iter().map(OsString::from));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: these calls are async-signal-safe and touch no memory of this process.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // Files of the caller, locks among them, do not stay open as long as the volume is mounted.
            libc::close_range(
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC as libc::c_int,
            );
            // Whoever interrupts the mounting means the target; it takes this back when the mount is there.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start a target")?;
    let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("no pipes from the target");
    };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.ends_with('\n') {
        return Ok(());
    }
    let mut text = Vec::new();
    errors.read_to_end(&mut text)?;
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    match text.strip_prefix("flashnet: ").unwrap_or(text) {
        "" => bail!("the target ended with {status}"),
        why => bail!("{why}"),
    }
}
