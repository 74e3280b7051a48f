//! The view on a terminal, drawn anew with each look, and its keys.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::rates::Looks;
use super::screen::{Shown, lines};
use super::terminal::Terminal;
use super::watched::Watched;
use crate::cli::top::Top;
use crate::commands::interrupt::Interrupted;
use crate::target::status::Status;

/// A look that takes longer is told of, and how long it has taken so far.
const SLOW: Duration = Duration::from_secs(1);

/// What the view waits for.
#[derive(Debug)]
enum Happening {
    /// A key.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// A look is done, or there is nobody to be looked at.
    Seen(Result<Box<Status>>),
    /// A signal.
    Interrupted,
    /// No more keys.
    NoKeys,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Pause,
    OtherSpan,
}

/// Shows what is seen until the user has seen enough.
pub(super) fn run(options: &Top, devices: Vec<PathBuf>) -> Result<()> {
    // The first look is one at a terminal that is still as it was: most of what can go wrong does so here.
    let mut watched = Watched::on(devices.clone());
    let looks = Looks::first(watched.look()?);
    let (sender, happenings) = channel();
    interrupted(sender.clone())?;
    let (wanted, look) = channel();
    let looking = looking(watched, look, sender.clone())?;
    let terminal = Terminal::take()?;
    keys(sender)?;
    let view = View {
        terminal,
        devices,
        looks,
        shown: Shown::Latest,
        is_paused: false,
        asked: None,
        due: Instant::now() + options.interval,
        left: options.looks(),
    };
    view.run(options.interval, &happenings, &wanted, &looking)
}

struct View {
    terminal: Terminal,
    devices: Vec<PathBuf>,
    looks: Looks,
    shown: Shown,
    is_paused: bool,
    /// Since when an answer is waited for.
    asked: Option<Instant>,
    /// When to look next.
    due: Instant,
    /// So many looks are wanted.
    left: Option<u64>,
}

impl View {
    fn run(
        mut self,
        interval: Duration,
        happenings: &Receiver<Happening>,
        wanted: &Sender<()>,
        looking: &JoinHandle<()>,
    ) -> Result<()> {
        self.left = self.left.map(|left| left - 1);
        loop {
            self.draw()?;
            let is_last = self.left == Some(0);
            if is_last {
                return Ok(());
            }
            match happenings.recv_timeout(self.patience()) {
                Ok(Happening::Key(key)) => match wish(key) {
                    Some(Wish::End) => return Ok(()),
                    Some(Wish::Pause) => self.is_paused ^= true,
                    Some(Wish::OtherSpan) => {
                        self.shown = match self.shown {
                            Shown::Latest => Shown::All,
                            Shown::All => Shown::Latest,
                        }
                    }
                    None => {}
                },
                Ok(Happening::Resized) => {}
                Ok(Happening::Seen(status)) => {
                    self.looks.again(*status?);
                    self.asked = None;
                    self.due = (self.due + interval).max(Instant::now());
                    self.left = self.left.map(|left| left - 1);
                }
                Ok(Happening::Interrupted) => return Err(Interrupted.into()),
                Ok(Happening::NoKeys) => bail!("the terminal is gone"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("a thread panicked"),
            }
            if looking.is_finished() {
                bail!("a thread panicked");
            }
            if self.asked.is_none() && !self.is_paused && Instant::now() >= self.due {
                self.asked = Some(Instant::now());
                let _ = wanted.send(());
            }
        }
    }

    /// How long there is nothing to do, if nothing happens.
    fn patience(&self) -> Duration {
        match self.asked {
            None if self.is_paused => Duration::MAX,
            None => self.due.saturating_duration_since(Instant::now()),
            Some(_) => SLOW,
        }
    }

    fn draw(&mut self) -> Result<()> {
        let waited = self.asked.map(|asked| asked.elapsed());
        let mut said = match waited.filter(|waited| *waited >= SLOW) {
            Some(waited) => format!(" [no answer for {} s]", waited.as_secs()),
            None if self.is_paused => " [paused]".to_owned(),
            None => String::new(),
        };
        said += match self.shown {
            Shown::Latest => "   q end, space pause, s totals",
            Shown::All => "   q end, space pause, s rates",
        };
        let now = SystemTime::now();
        let lines = lines(&self.looks, self.shown, &self.devices, now, &said);
        Ok(self.terminal.draw(lines)?)
    }
}

fn wish(key: KeyEvent) -> Option<Wish> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::End),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Wish::End),
        KeyCode::Char(' ' | 'p') => Some(Wish::Pause),
        KeyCode::Char('s') => Some(Wish::OtherSpan),
        _ => None,
    }
}

/// Looks when it is told to: an answer may take long, and keys do not wait for it.
fn looking(
    mut watched: Watched,
    wanted: Receiver<()>,
    seen: Sender<Happening>,
) -> Result<JoinHandle<()>> {
    let look = move || {
        while wanted.recv().is_ok() {
            // Nobody waits for it at the end.
            let _ = seen.send(Happening::Seen(watched.look().map(Box::new)));
        }
    };
    Ok(Builder::new().name("looking".into()).spawn(look)?)
}

/// Waits for keys until the process ends.
fn keys(pressed: Sender<Happening>) -> Result<()> {
    let wait = move || {
        loop {
            let happening = match event::read() {
                Ok(Event::Key(key)) => Happening::Key(key),
                Ok(Event::Resize(..)) => Happening::Resized,
                Ok(_) => continue,
                Err(_) => Happening::NoKeys,
            };
            let is_last = matches!(happening, Happening::NoKeys);
            if pressed.send(happening).is_err() || is_last {
                return;
            }
        }
    };
    Builder::new().name("keys".into()).spawn(wait)?;
    Ok(())
}

/// Waits for signals until the process ends.
fn interrupted(caught: Sender<Happening>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        while signals.forever().next().is_some() {
            let _ = caught.send(Happening::Interrupted);
        }
    };
    Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}
