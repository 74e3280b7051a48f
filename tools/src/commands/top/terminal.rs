//! The terminal while it is drawn on, and as it was afterwards, however that ends.

use std::io::{self, Stdout, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, SetAttribute};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap,
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use super::line::{Kind, Line, fit};

/// Of a terminal that does not say how large it is.
const USUAL: (u16, u16) = (80, 24);
/// It is not as it was.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal of this process, taken.
#[derive(Debug)]
pub(super) struct Terminal(Stdout);

impl Terminal {
    /// Takes it: keys come one by one, and what it shows is kept until the end.
    pub(super) fn take() -> Result<Self> {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // So that it is seen what has happened.
            restore();
            usual(info);
        }));
        terminal::enable_raw_mode().context("cannot use the terminal (--batch appends text)")?;
        IS_TAKEN.store(true, Ordering::SeqCst);
        let mut this = Self(io::stdout());
        execute!(this.0, EnterAlternateScreen, DisableLineWrap, Hide)?;
        Ok(this)
    }

    /// Shows those lines for which there is room.
    pub(super) fn draw(&mut self, lines: Vec<Line>) -> io::Result<()> {
        let (width, height) = match terminal::size()? {
            (0, _) | (_, 0) => USUAL,
            size => size,
        };
        let mut drawn = Vec::new();
        queue!(drawn, BeginSynchronizedUpdate)?;
        let lines = fit(lines, width.into(), height.into());
        for (row, line) in (0..).zip(&lines) {
            queue!(drawn, MoveTo(0, row), Clear(ClearType::CurrentLine))?;
            queue!(drawn, SetAttribute(look_of(line.kind)))?;
            drawn.extend_from_slice(line.text.as_bytes());
            queue!(drawn, SetAttribute(Attribute::Reset))?;
        }
        if lines.len() < height.into() {
            queue!(drawn, MoveTo(0, lines.len() as u16))?;
            queue!(drawn, Clear(ClearType::FromCursorDown))?;
        }
        queue!(drawn, EndSynchronizedUpdate)?;
        self.0.write_all(&drawn)?;
        self.0.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn look_of(kind: Kind) -> Attribute {
    match kind {
        Kind::Title => Attribute::Bold,
        Kind::Heading => Attribute::Reverse,
        Kind::Warning => Attribute::Bold,
        Kind::Row => Attribute::Reset,
    }
}

fn restore() {
    if !IS_TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // Whoever can not be written to has no screen either.
    let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}
