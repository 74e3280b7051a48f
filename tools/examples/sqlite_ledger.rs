//! A ledger in SQLite, for `tools/scripts/sqlite.sh`: every transaction can be told from every other one, so what is
//! missing, torn or invented shows.
//!
//! ```text
//! sqlite_ledger write DATABASE JOURNAL MAPPED    commit, and print the number of each transaction once it is durable
//! sqlite_ledger watch DATABASE JOURNAL MAPPED    read snapshots; each must be in order and not older than the last
//! sqlite_ledger check DATABASE ACKNOWLEDGED      everything is in order, and what was printed is there
//! ```
//!
//! The first two go on until something fails. Status 2: SQLite could not go on (the file system is gone); 1: the data
//! are wrong.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

/// What a transaction adds.
const LINES: u64 = 4;
const ACCOUNTS: u64 = 500;

enum Failure {
    Sqlite(rusqlite::Error),
    Wrong(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // No file system may cause these by dying.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Wrong(error.to_string())
            }
            _ => Self::Sqlite(error),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["write", database, journal, mapped] => write(database.as_ref(), journal, mapped),
        ["watch", database, journal, mapped] => watch(database.as_ref(), journal, mapped),
        ["check", database, acknowledged] => check(database.as_ref(), acknowledged.as_ref()),
        _ => Err(Failure::Wrong("see the head of the source".into())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(what)) => {
            eprintln!("{what}");
            ExitCode::from(1)
        }
        Err(Failure::Sqlite(error)) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn open(path: &Path, journal: &str, mapped: &str) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", journal, |row| row.get(0))?;
    if mode != journal {
        return Err(Failure::Wrong(format!(
            "asked for journal {journal}, got {mode}"
        )));
    }
    let bytes: u64 =
        connection.pragma_update_and_check(None, "mmap_size", mapped, |row| row.get(0))?;
    if bytes.to_string() != mapped {
        return Err(Failure::Wrong(format!(
            "asked to map {mapped}, got {bytes}"
        )));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // So small that pages go to the file in the middle of transactions.
    connection.pragma_update(None, "cache_size", 20)?;
    Ok(connection)
}

/// Mixes a number: what a line says follows from where it stands.
fn mix(number: u64) -> u64 {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    state ^= state >> 32;
    state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
    state ^ state >> 32
}

/// Account, amount and memo of a line.
fn line(id: u64, line: u64) -> (u64, i64, Vec<u8>) {
    let seed = mix(id * LINES + line);
    let memo = (0..seed % 3000).map(|at| mix(seed + at / 8) as u8);
    (
        seed % ACCOUNTS,
        (seed >> 16) as i64 % 1000 - 500,
        memo.collect(),
    )
}

fn write(path: &Path, journal: &str, mapped: &str) -> Result<(), Failure> {
    let mut connection = open(path, journal, mapped)?;
    connection.execute_batch(
        "BEGIN IMMEDIATE;
         CREATE TABLE IF NOT EXISTS entries (id INTEGER, line INTEGER, account INTEGER, amount INTEGER, memo BLOB,
             PRIMARY KEY (id, line));
         CREATE INDEX IF NOT EXISTS by_account ON entries (account, amount);
         CREATE TABLE IF NOT EXISTS accounts (account INTEGER PRIMARY KEY, balance INTEGER);
         COMMIT;",
    )?;
    let last: u64 = connection.query_one("SELECT ifnull(max(id), 0) FROM entries", [], |row| {
        row.get(0)
    })?;
    let mut output = std::io::stdout().lock();
    for id in last + 1.. {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        add(&transaction, id)?;
        transaction.commit()?;
        // One write, so a line is there or not.
        output
            .write_all(format!("{id}\n").as_bytes())
            .and_then(|()| output.flush())
            .map_err(|error| Failure::Wrong(error.to_string()))?;
    }
    Ok(())
}

fn add(transaction: &Transaction<'_>, id: u64) -> Result<(), Failure> {
    let mut entry = transaction.prepare("INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut balance = transaction.prepare(
        "INSERT INTO accounts VALUES (?1, ?2)
         ON CONFLICT (account) DO UPDATE SET balance = balance + excluded.balance",
    )?;
    for at in 0..LINES {
        let (account, amount, memo) = line(id, at);
        entry.execute(params![id, at, account, amount, memo])?;
        balance.execute(params![account, amount])?;
    }
    Ok(())
}

/// The last transaction, if the totals are right.
fn totals(connection: &Connection) -> Result<u64, Failure> {
    let (last, lines, amounts, balances): (u64, u64, i64, i64) = connection.query_one(
        "SELECT (SELECT ifnull(max(id), 0) FROM entries), (SELECT count(*) FROM entries),
                (SELECT ifnull(sum(amount), 0) FROM entries), (SELECT ifnull(sum(balance), 0) FROM accounts)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )?;
    if lines != last * LINES {
        return Err(Failure::Wrong(format!(
            "{last} transactions have {lines} lines"
        )));
    }
    if amounts != balances {
        return Err(Failure::Wrong(format!(
            "amounts are {amounts}, balances {balances}"
        )));
    }
    Ok(last)
}

fn watch(path: &Path, journal: &str, mapped: &str) -> Result<(), Failure> {
    let connection = open(path, journal, mapped)?;
    let mut last = 0;
    loop {
        let seen = totals(&connection)?;
        if seen < last {
            return Err(Failure::Wrong(format!("{last} was seen, now only {seen}")));
        }
        last = seen;
        // A writer wants its turn.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn check(path: &Path, acknowledged: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(acknowledged).map_err(|e| Failure::Wrong(e.to_string()))?;
    let printed: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    let verdict: String = connection.query_one("PRAGMA integrity_check", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Failure::Wrong(format!("integrity_check: {verdict}")));
    }
    let last = totals(&connection)?;
    let newest = printed.iter().copied().max().unwrap_or(0);
    // One may have been durable before it could be acknowledged.
    if !(newest..=newest + 1).contains(&last) {
        return Err(Failure::Wrong(format!(
            "{newest} was acknowledged, the last one is {last}"
        )));
    }
    let mut entries =
        connection.prepare("SELECT account, amount, memo FROM entries ORDER BY id, line")?;
    let mut rows = entries.query([])?;
    let expected = (1..=last).flat_map(|id| (0..LINES).map(move |at| (id, at)));
    for (id, at) in expected {
        let found = match rows.next()? {
            Some(row) => Some((row.get(0)?, row.get(1)?, row.get(2)?)),
            None => None,
        };
        if found != Some(line(id, at)) {
            return Err(Failure::Wrong(format!(
                "line {at} of transaction {id} is wrong"
            )));
        }
    }
    println!("{} acknowledged, {last} there, in order", printed.len());
    Ok(())
}
