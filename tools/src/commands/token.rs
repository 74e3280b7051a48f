//! `token`: secrets and tokens of tenants.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;

use crate::cli::token::{self as cli, TokenCommand};
use crate::credentials::token::{from_text, read_text, to_text};
use crate::credentials::{Claims, Key, Unverified, unix_now};

/// Runs the command.
pub(super) fn run(command: &TokenCommand, json: bool) -> Result<()> {
    match command {
        TokenCommand::Key(options) => key(options),
        TokenCommand::Make(options) => make(options, json),
        TokenCommand::Show(options) => show(options, json),
    }
}

fn key(options: &cli::Key) -> Result<()> {
    let secret: [u8; 32] = rand::random();
    private(&options.file, &to_text(&secret))
}

fn make(options: &cli::Make, json: bool) -> Result<()> {
    let key = Key::read(&options.key_file)
        .with_context(|| format!("key file {}", options.key_file.display()))?;
    let claims = Claims {
        tenant: options.tenant.clone(),
        epoch: options.epoch,
        expires: unix_now().saturating_add(options.lifetime.as_secs().max(1)),
        once: false,
        nonce: rand::random(),
    };
    let text = to_text(&key.sign(&claims));
    match &options.output {
        Some(file) => private(file, &text)?,
        None if json => println!("{}", json!({ "token": text })),
        None => println!("{text}"),
    }
    Ok(())
}

fn show(options: &cli::Show, json: bool) -> Result<()> {
    let name = options.file.display();
    let text = File::open(&options.file).and_then(read_text);
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let token = from_text(&text).with_context(|| format!("{name}"))?;
    let (token, _) = Unverified::parse(&token)?;
    let claims = token.claims();
    let expired = claims.expires <= unix_now();
    if json {
        let said = json!({
            "tenant": claims.tenant.as_str(),
            "epoch": claims.epoch,
            "expires": claims.expires,
            "expired": expired,
        });
        println!("{said}");
        return Ok(());
    }
    println!(" Tenant: {}", claims.tenant);
    println!("  Epoch: {}", claims.epoch);
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(claims.expires));
    // What lies beyond the year 9999 has no date in this form.
    let at = at.filter(|_| claims.expires < 253_402_300_800);
    let at = at.map_or("never".to_owned(), |at| {
        humantime::format_rfc3339_seconds(at).to_string()
    });
    let over = if expired { " (is over)" } else { "" };
    println!("Expires: {at}{over}");
    Ok(())
}

/// Writes a file that nobody else can read, and that was not there before.
fn private(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let written = writeln!(file, "{text}");
    if written.is_err() {
        // It would be in the way of the next try.
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}
