//! The idempotency key of a submitted message.

use crate::limits::KEY_MAX;

/// Keys that begin so are made from a message's place in the stream, never by a client.
pub const RESERVED: char = '~';

/// A key that a client may not use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// It begins with [`RESERVED`].
    #[error("keys that begin with `{RESERVED}` are reserved")]
    Reserved,
    /// Empty or too long.
    #[error("a key has 1 to {KEY_MAX} bytes, this one {0}")]
    Length(usize),
    /// It holds a control character.
    #[error("a key has no control characters")]
    Control,
}

/// Checks what a client names.
pub fn check(key: &str) -> Result<(), BadKey> {
    if key.starts_with(RESERVED) {
        Err(BadKey::Reserved)
    } else if key.is_empty() || key.len() > KEY_MAX {
        Err(BadKey::Length(key.len()))
    } else if key.contains(char::is_control) {
        Err(BadKey::Control)
    } else {
        Ok(())
    }
}

/// The key of a message that names none, or a bad one: its place in this stream and no other.
pub fn of_place(sequence: u64, stored_at_ns: i64) -> String {
    format!("{RESERVED}{sequence}.{stored_at_ns}")
}

/// The key of a message: `Bw-Key`, else `Nats-Msg-Id`, else its place.
pub fn of_message(
    key: Option<&str>,
    msg_id: Option<&str>,
    sequence: u64,
    stored_at_ns: i64,
) -> Result<String, BadKey> {
    match key.or(msg_id) {
        None => Ok(of_place(sequence, stored_at_ns)),
        Some(key) => check(key).map(|()| key.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_or_made_from_the_place() {
        let key = |key, id| of_message(key, id, 7, 9);
        assert_eq!(key(Some("k"), Some("m")).as_deref(), Ok("k"));
        assert_eq!(key(None, Some("m")).as_deref(), Ok("m"));
        assert_eq!(key(None, None).as_deref(), Ok("~7.9"));
        assert_eq!(key(Some("~7.9"), None), Err(BadKey::Reserved));
        assert_eq!(key(Some(""), None), Err(BadKey::Length(0)));
        let long = "x".repeat(KEY_MAX + 1);
        assert_eq!(key(Some(&long), None), Err(BadKey::Length(KEY_MAX + 1)));
        assert_eq!(key(Some("a\nb"), None), Err(BadKey::Control));
    }
}
