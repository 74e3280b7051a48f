//! Mounting and unmounting with the help of fusermount3(1), which ordinary users need.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::mount::MountOptions;
use crate::fs::AtimePolicy;

const NAMES: [&str; 2] = ["fusermount3", "fusermount"];
/// Where it finds the socket for the descriptor.
const SOCKET: &str = "_FUSE_COMMFD";
/// Names another program to take for it.
const PATH: &str = "FUSERMOUNT_PATH";

/// The helper, if it is installed.
fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(PATH) {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/bin".into(), "/usr/bin".into()]);
    let mut files = dirs.flat_map(|dir| NAMES.map(|name| dir.join(name)));
    files.find(|file| file.exists())
}

/// Whether it is installed.
pub(super) fn is_installed() -> bool {
    program().is_some()
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "fusermount3 is not installed")
}

fn not_run(program: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", program.display()))
}

/// Mounts on `dir`; whoever gets the answer serves it.
pub(super) fn attach(
    dir: &Path,
    options: &MountOptions,
    atime: AtimePolicy,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let fd = theirs.as_raw_fd();
    let program = program().ok_or_else(missing)?;
    let mut command = Command::new(&program);
    command
        .args(["-o", &list(options, atime), "--"])
        .arg(dir.canonicalize()?)
        .env(SOCKET, fd.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: fcntl is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let child = command.spawn().map_err(|error| not_run(&program, &error))?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output()?;
    match device {
        Ok(device) if output.status.success() => Ok(device.into()),
        Ok(_) | Err(_) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let kind = match text.contains("user_allow_other") {
                true => io::ErrorKind::PermissionDenied,
                false => io::ErrorKind::Other,
            };
            Err(io::Error::new(kind, text.trim().to_owned()))
        }
    }
}

/// The descriptor that comes through the socket.
fn receive(socket: &UnixStream) -> io::Result<File> {
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
            Err(nix::Error::EINTR) => {}
            result => break result?,
        }
    };
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part
            && let Some(&fd) = fds.first()
        {
            // SAFETY: the kernel just made this descriptor for us, and nobody else has it.
            return Ok(unsafe { File::from_raw_fd(fd) });
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The options as the helper takes them: a list with commas between them.
fn list(options: &MountOptions, atime: AtimePolicy) -> String {
    let name = options.name.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={name},subtype=contigfs,default_permissions");
    let flags = [
        (options.allow_other.unwrap_or(false), ",allow_other"),
        (options.read_only, ",ro"),
        (atime == AtimePolicy::Never, ",noatime"),
        (options.suid.unwrap_or(false), ",suid"),
        (options.dev.unwrap_or(false), ",dev"),
        (!options.exec, ",noexec"),
        (options.sync, ",sync"),
    ];
    for (_, flag) in flags.into_iter().filter(|(wanted, _)| *wanted) {
        list.push_str(flag);
    }
    list
}

/// Unmounts for an ordinary user, who can not call umount(2); `lazy`: takes it out of sight now.
///
/// # Errors
/// `NotFound` if there is no helper, `EBUSY`, or what the helper says.
pub fn unmount_by_helper(dir: &Path, lazy: bool) -> io::Result<()> {
    let program = program().ok_or_else(missing)?;
    let output = Command::new(&program)
        .args(if lazy {
            &["-u", "-z", "--"][..]
        } else {
            &["-u", "--"]
        })
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_run(&program, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(match text.contains("busy") {
        true => io::Error::from_raw_os_error(libc::EBUSY),
        false => io::Error::other(text.trim().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_as_a_list() {
        let options = MountOptions {
            name: "a,b\\c".into(),
            read_only: true,
            exec: false,
            ..MountOptions::default()
        };
        assert_eq!(
            list(&options, AtimePolicy::Relative),
            "fsname=a\\,b\\\\c,subtype=contigfs,default_permissions,ro,noexec"
        );
    }
}
