//! Whether all is well with a target, as load balancers and probes want to know it: in one word, or one sentence.

use super::Status;

/// A device that answers nothing for so many seconds is not well, whatever it is busy with.
const SILENT: f64 = 10.0;

/// Nothing is wrong; else what is.
pub(super) fn of(status: &Status) -> Result<(), String> {
    let volume = &status.volume;
    if let Some(why) = volume.why_failed() {
        return Err(why);
    }
    let lost: Vec<String> = volume
        .devices
        .iter()
        .filter(|device| !is_up(&device.state))
        .map(|device| format!("{} is {}", device.path, device.state))
        .collect();
    if !lost.is_empty() {
        return Err(format!("{}: what lies there is lost", lost.join(", ")));
    }
    let silent = volume.devices.iter().find(|device| device.silent >= SILENT);
    if let Some(device) = silent {
        let (path, seconds) = (&device.path, device.silent);
        return Err(format!("{path} has answered nothing for {seconds:.0} s"));
    }
    if volume.suspect {
        return Err(
            "something is wrong with what the volume holds: fsck should look at it".to_owned(),
        );
    }
    Ok(())
}

/// Whether a device in this state serves.
pub(in crate::target) fn is_up(state: &str) -> bool {
    state == "live"
}

#[cfg(test)]
mod tests {
    use super::super::Device;
    use super::*;

    #[test]
    fn what_is_said() {
        let mut status = Status::default();
        let device = |path: &str, state: &str| Device {
            path: path.to_owned(),
            state: state.to_owned(),
            ..Device::default()
        };
        status.volume.devices = vec![device("/dev/a", "live"), device("/dev/b", "live")];
        assert_eq!(of(&status), Ok(()));
        status.volume.suspect = true;
        assert!(of(&status).unwrap_err().contains("fsck"));
        status.volume.devices[1].silent = 9.0;
        assert!(of(&status).unwrap_err().contains("fsck"));
        status.volume.devices[1].silent = 12.3;
        let said = of(&status).unwrap_err();
        assert_eq!(said, "/dev/b has answered nothing for 12 s");
        status.volume.devices[1].state = "failed".to_owned();
        let said = of(&status).unwrap_err();
        assert_eq!(said, "/dev/b is failed: what lies there is lost");
        status.volume.failure = Some("input/output error".to_owned());
        let said = of(&status).unwrap_err();
        assert!(said.contains("failed (input/output error)"), "{said}");
    }
}
