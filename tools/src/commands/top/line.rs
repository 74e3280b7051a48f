//! A line of text for people, and how many of them a terminal has room for.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::control::printable;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What the rest is about.
    Title,
    /// Names of columns.
    Heading,
    /// Something is wrong.
    Warning,
    /// Anything else.
    Row,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// What it is.
    pub(super) kind: Kind,
    /// What it says; nothing that a terminal would obey.
    pub(super) text: String,
    /// It is the first to go where there is no room.
    pub(super) is_spare: bool,
}

impl Line {
    /// A line of this text, in which peers and operators may have had a say.
    pub(super) fn new(kind: Kind, text: impl AsRef<str>) -> Self {
        Self {
            kind,
            text: printable(text.as_ref().trim_end().as_bytes()),
            is_spare: false,
        }
    }
}

/// Those lines for which there is room, cut to `width` columns.
pub(super) fn fit(mut lines: Vec<Line>, width: usize, height: usize) -> Vec<Line> {
    let mut over = lines.len().saturating_sub(height);
    while over > 0 {
        let Some(spare) = lines.iter().rposition(|line| line.is_spare) else {
            break;
        };
        lines.remove(spare);
        over -= 1;
    }
    lines.truncate(height);
    for line in &mut lines {
        line.text.truncate(prefix(&line.text, width));
    }
    lines
}

/// Bytes of what stands in the first columns.
fn prefix(text: &str, width: usize) -> usize {
    let mut columns = 0;
    let beyond = text.char_indices().find(|(_, c)| {
        columns += c.width().unwrap_or(0);
        columns > width
    });
    beyond.map_or(text.len(), |(at, _)| at)
}

/// A name in exactly so many columns: of a path that is too long its last part, or the end of that.
pub(super) fn name(text: &str, width: usize) -> String {
    let text = printable(text.as_bytes());
    let last = text.rsplit('/').next().unwrap_or_default();
    let text = match text.width() > width && !last.is_empty() {
        true => last,
        false => &text,
    };
    if text.width() <= width {
        return format!("{text}{}", " ".repeat(width - text.width()));
    }
    let (mut columns, mut from) = (1, text.len());
    for (at, c) in text.char_indices().rev() {
        columns += c.width().unwrap_or(0);
        if columns > width {
            columns -= c.width().unwrap_or(0);
            break;
        }
        from = at;
    }
    let free = width.saturating_sub(columns);
    format!("…{}{}", &text[from..], " ".repeat(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    /// Nothing is wider or higher than there is room, also where characters have two columns; what is spare goes first.
    #[test]
    fn room() {
        let mut lines: Vec<Line> = ["first", "漢字漢字", "c", "d"]
            .map(|text| Line::new(Kind::Row, text))
            .into();
        lines[2].is_spare = true;
        let fitted = |width, height| fit(lines.clone(), width, height);
        assert_eq!(texts(&fitted(80, 9)), ["first", "漢字漢字", "c", "d"]);
        assert_eq!(texts(&fitted(5, 3)), ["first", "漢字", "d"]);
        assert_eq!(texts(&fitted(1, 1)), ["f"]);
        assert_eq!(texts(&fitted(0, 2)), ["", ""]);
        assert!(fitted(80, 0).is_empty());
    }

    #[test]
    fn names() {
        assert_eq!(name("a.img", 8), "a.img   ");
        assert_eq!(name("/srv/volumes/a.img", 8), "a.img   ");
        assert_eq!(name("/srv/volumes/archive.img", 8), "…ive.img");
        assert_eq!(name("/srv/volumes/", 8), "…olumes/");
        assert_eq!(name("漢字漢字", 6), "…漢字 ");
    }

    /// What others have named something does not command the terminal.
    #[test]
    fn nothing_is_obeyed() {
        let line = Line::new(Kind::Row, "a\u{1b}[2J\u{9b}2J\nb");
        assert!(!line.text.chars().any(char::is_control), "{line:?}");
        assert!(!name("\u{1b}]0;x\u{7}", 20).chars().any(char::is_control));
    }
}
