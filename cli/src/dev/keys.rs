//! Single keys from a terminal, without Enter. The terminal is put back at the end.

use std::io::{IsTerminal, Read};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// The keyboard, while it lives.
#[derive(Debug)]
pub(crate) struct Keys {
    before: Option<Termios>,
    keys: mpsc::Receiver<u8>,
}

impl Keys {
    /// Reads keys if stdin is a terminal; otherwise none ever come.
    pub(crate) fn open() -> Self {
        let (sender, keys) = mpsc::channel(8);
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Self { before: None, keys };
        }
        let before = tcgetattr(&stdin).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.local_modes
                .remove(LocalModes::ICANON | LocalModes::ECHO);
            if let Err(error) = tcsetattr(&stdin, OptionalActions::Now, &raw) {
                tracing::debug!(%error, "keys need Enter here");
            }
        }
        std::thread::spawn(move || {
            let mut key = [0];
            while std::io::stdin().read_exact(&mut key).is_ok() {
                if sender.blocking_send(key[0]).is_err() {
                    return;
                }
            }
        });
        Self { before, keys }
    }

    /// The next key; never, when there is no terminal.
    pub(crate) async fn next(&mut self) -> u8 {
        match self.keys.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone; then there is nothing to put back.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
