//! Colours, widths and units.

pub use crate::report::size::bytes;
use std::fmt::Write;

/// How text is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Terminal escape sequences may be used.
    pub colour: bool,
    /// Columns.
    pub width: usize,
}

/// What a piece of text means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A heading or a number that matters.
    Strong,
    /// All is well.
    Good,
    /// Something to act on.
    Bad,
    /// There for those who look.
    Faint,
}

impl Style {
    /// No colour, and lines as long as they are: for files and pipes.
    pub const PLAIN: Style = Style { colour: false, width: 100_000 };

    /// For running text in a report: it is read in mails and logs too, on 80 columns.
    pub(super) fn for_words(self) -> Style {
        Style { width: self.width.min(80), ..self }
    }

    /// Marks `text`, where colours are on.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Bad => "1;31",
            Tone::Faint => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A heading.
    pub fn title(&self, text: &str) -> String {
        self.paint(Tone::Strong, text)
    }

    /// Cuts the end off what does not fit after `used` columns.
    pub fn fit(&self, text: &str, used: usize) -> String {
        let room = self.room(used);
        if text.chars().count() <= room {
            return text.to_owned();
        }
        let kept: String = text.chars().take(room - 1).collect();
        kept + "…"
    }

    /// Cuts the beginning off: the end of a path tells more.
    pub fn fit_left(&self, text: &str, used: usize) -> String {
        let (room, length) = (self.room(used), text.chars().count());
        if length <= room {
            return text.to_owned();
        }
        let kept: String = text.chars().skip(length - room + 1).collect();
        format!("…{kept}")
    }

    /// Running text in lines of a width that reads well, `used` columns aside. Breaks at blanks, and where there
    /// is none for a whole line, within the word.
    pub fn wrap(&self, text: &str, used: usize) -> Vec<String> {
        let width = self.width.saturating_sub(used).clamp(40, 92);
        let mut lines = vec![String::new()];
        let words = text.split_ascii_whitespace().flat_map(|word| {
            let letters: Vec<char> = word.chars().collect();
            letters.chunks(width).map(|part| part.iter().collect::<String>()).collect::<Vec<_>>()
        });
        for word in words {
            let line = lines.last().map_or(0, |line| line.chars().count());
            if line > 0 && line + 1 + word.chars().count() > width {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(&word);
            }
        }
        lines
    }

    fn room(&self, used: usize) -> usize {
        // In a window too narrow for anything the terminal may wrap.
        self.width.saturating_sub(used).max(20)
    }
}

/// `1 allocation`, `2 allocations`.
pub fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Makes control characters visible. Names come from files that anybody may have written, and an escape
/// sequence in one could rewrite the screen.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Bidirectional marks reorder what is around them.
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\u{202e}\n"), "a\\u{1b}[2Jb\\u{202e}\\u{a}");
        assert_eq!(clean("Straße"), "Straße");
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        let style = Style { colour: false, width: 30 };
        assert_eq!(style.fit("abcdefghijklmnopqrstuvwxyz", 5), "abcdefghijklmnopqrstuvwx…");
        assert_eq!(style.fit_left("abcdefghijklmnopqrstuvwxyz", 5), "…cdefghijklmnopqrstuvwxyz");
        assert_eq!(style.fit("short", 5), "short");
    }
}
