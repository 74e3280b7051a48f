//! `region`: the persistent regions of a volume, looked at and revoked by its operator. A target that serves the volume is asked;
//! of one that nobody serves the devices are opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use contigfs::{Fs, InodeNo};
use ftl::{Device, Lba, OpenOptions, OverlayDevice, Volume};
use serde_json::{Value, json};
use softrdma::{BackingId, RegionTable};

use super::show;
use super::volume::devices_of;
use crate::cli::region::{RegionCommand, Which};
use crate::control::printable;
use crate::credentials::registry::{self, Choice, Hooks, Listed};
use crate::credentials::{ANONYMOUS, Registry};
use crate::devices::{self, Access};
use crate::target::{self, Question};

/// Pages in memory while the devices are open.
const POOL_FRAMES: usize = 4096;

/// Runs the command.
pub(super) fn run(command: &RegionCommand, json: bool) -> Result<()> {
    let (volume, question) = match command {
        RegionCommand::List(list) => {
            let all = Choice::All;
            (
                &list.volume,
                Question::List(choice(&list.which).unwrap_or(all)),
            )
        }
        RegionCommand::Revoke(revoke) => {
            let all = revoke.all.then_some(Choice::All);
            let chosen = choice(&revoke.which).or(all);
            let chosen = chosen.context("it is not said which regions are to be revoked")?;
            (&revoke.volume, Question::Revoke(chosen))
        }
    };
    let paths = devices_of(volume)?;
    let answer = match target::ask(&paths, &question)? {
        Some(answer) => answer,
        None => answer_offline(&paths, &question)?,
    };
    tell(&question, &answer, json);
    Ok(())
}

fn choice(which: &Which) -> Option<Choice> {
    let stag = which.stag.map(Choice::Stag);
    let path = which.path.clone().map(Choice::Path);
    let tenant = which.tenant.clone().map(Choice::Tenant);
    let strangers = which.strangers.then_some(Choice::Strangers);
    stag.or(path).or(tenant).or(strangers)
}

/// There are no regions of files as long as nobody serves them.
struct Nobody;

impl Hooks for Nobody {
    fn registering(&self, _: InodeNo, _: Lba) -> Option<BackingId> {
        None
    }

    fn ended(&self, _: &[InodeNo]) {}
}

fn answer_offline(paths: &[PathBuf], question: &Question) -> Result<Vec<Listed>> {
    match question {
        Question::List(choice) => {
            // What recovery has to write stays in memory.
            let device = OverlayDevice::new(devices::open(paths, Access::Read)?);
            let volume = open(device, paths)?;
            Ok(stored(&volume)?.list(choice)?)
        }
        Question::Revoke(choice) => {
            let volume = open(devices::open(paths, Access::Write)?, paths)?;
            let revoked = stored(&volume).and_then(|stored| Ok(stored.revoke_chosen(choice)?));
            // Also when nothing was revoked: it is as it was, and closed.
            let closed = volume.shutdown();
            let revoked = revoked?;
            closed.context("cannot close the volume")?;
            Ok(revoked)
        }
    }
}

fn open<D: Device>(device: D, paths: &[PathBuf]) -> Result<Volume<D>> {
    let options = OpenOptions {
        pool_frames: POOL_FRAMES,
        ..OpenOptions::default()
    };
    let names = devices::names(paths);
    let (volume, recovery) = Volume::open(device, options)
        .with_context(|| format!("cannot open the volume on {names}"))?;
    show::lost_headers(&names, &recovery);
    Ok(volume)
}

fn stored<D: Device>(volume: &Volume<D>) -> Result<Registry<&Volume<D>>> {
    let fs = Arc::new(Fs::mount(volume).context("cannot read the file system of the volume")?);
    let options = registry::Options {
        lifetime: 0,
        bug: None,
    };
    let stags = RegionTable::new(rand::random());
    let registry = Registry::open(fs, stags, Box::new(Nobody), options);
    let registry = registry.context("cannot read the stored credentials")?;
    registry
        .adopt()
        .context("stored credentials cannot be read: flashnet fsck tells what is damaged")?;
    Ok(registry)
}

fn tell(question: &Question, regions: &[Listed], json: bool) {
    if json {
        let objects: Value = regions.iter().map(object).collect();
        match question {
            Question::List(_) => println!("{}", json!({ "regions": objects })),
            Question::Revoke(_) => println!("{}", json!({ "revoked": objects })),
        }
        return;
    }
    if let Question::Revoke(_) = question {
        for region in regions {
            println!("{:#010x} of {} is revoked", region.stag, file(region));
        }
        if regions.is_empty() {
            println!("there is no such region: nothing was revoked");
        }
        return;
    }
    let mut table = show::table(&[
        "STag",
        "sync STag",
        "tenant",
        "offset",
        "bytes",
        "rights",
        "connections",
        "until",
        "file",
    ]);
    for region in regions {
        let rights = if region.writable { "write" } else { "read" };
        table.add_row([
            format!("{:#010x}", region.stag),
            format!("{:#010x}", region.sync_stag),
            tenant(region),
            region.offset.to_string(),
            region.length.to_string(),
            rights.to_owned(),
            region.connections.to_string(),
            time(region.expires),
            file(region),
        ]);
    }
    println!("{table}");
}

fn tenant(region: &Listed) -> String {
    match &region.tenant {
        Some(name) => name.clone(),
        None if region.domain == ANONYMOUS.0 => "-".to_owned(),
        // Configured once, and forgotten since.
        None => format!("number {}", region.domain),
    }
}

fn file(region: &Listed) -> String {
    // Whoever may make files has chosen it.
    let path = region.path.as_ref().map(|path| printable(path.as_bytes()));
    path.unwrap_or_else(|| format!("inode {}", region.inode))
}

fn time(expires: u64) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(expires));
    // What lies beyond the year 9999 has no date in this form.
    let at = at.filter(|_| expires < 253_402_300_800);
    at.map_or("ever".to_owned(), |at| {
        humantime::format_rfc3339_seconds(at).to_string()
    })
}

fn object(region: &Listed) -> Value {
    json!({
        "stag": format!("{:#010x}", region.stag),
        "sync_stag": format!("{:#010x}", region.sync_stag),
        "tenant": region.tenant,
        "domain": region.domain,
        "inode": region.inode,
        "path": region.path,
        "offset": region.offset,
        "length": region.length,
        "writable": region.writable,
        "expires": region.expires,
        "connections": region.connections,
    })
}
