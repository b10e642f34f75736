//! What `dev` prints: events that stay, and on a terminal a status block below them that is
//! drawn anew. Without a terminal there are only plain lines.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// The terminal, or a file.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: bool,
    drawn: usize,
    started: Instant,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            started: Instant::now(),
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A line that stays, with the seconds since the start.
    pub(crate) fn event(&mut self, text: &str) -> std::io::Result<()> {
        let seconds = self.started.elapsed().as_secs_f64();
        self.line(&format!("{seconds:>6.1} s  {text}"))
    }

    /// A line that stays.
    pub(crate) fn line(&mut self, text: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        self.erase(&mut out)?;
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Draws the status block; nothing without a terminal.
    pub(crate) fn status(&mut self, lines: &[String]) -> std::io::Result<()> {
        if !self.terminal {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        self.erase(&mut out)?;
        for line in lines {
            // Wrapping is switched off meanwhile: a wrapped line could not be erased.
            writeln!(out, "\x1b[?7l{line}\x1b[?7h")?;
        }
        self.drawn = lines.len();
        out.flush()
    }

    fn erase(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        if self.drawn > 0 {
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
            self.drawn = 0;
        }
        Ok(())
    }
}
