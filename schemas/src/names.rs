//! Namespace, queue, job and schedule names: `[A-Za-z0-9_-]{1,64}`.
//!
//! The alphabet is that of one NATS subject token, so that a name is the same
//! in a subject, in SQL and on a screen.

/// Longest name, in bytes.
pub const NAME_MAX: usize = 64;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} name {name:?} is refused: use 1 to 64 of A-Z a-z 0-9 _ -")]
pub struct NameError {
    /// What was named: `job`, `queue`, `namespace`, `schedule`.
    pub kind: &'static str,
    /// The name as given, cut to 80 characters.
    pub name: String,
}

/// Whether `name` keeps the alphabet and the length.
pub const fn is_valid(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > NAME_MAX {
        return false;
    }
    let mut at = 0;
    while at < bytes.len() {
        if !(bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || bytes[at] == b'-') {
            return false;
        }
        at += 1;
    }
    true
}

/// Accepts a valid name and refuses every other one with the alphabet in the message.
pub fn check(kind: &'static str, name: &str) -> Result<(), NameError> {
    if is_valid(name) {
        return Ok(());
    }
    Err(NameError {
        kind,
        name: name.chars().take(80).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_subject_token() {
        for good in ["a", "nightly-report", "A_9", &"x".repeat(64)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "a b", "a.b", "a*", "a>", "ä", &"x".repeat(65)] {
            assert!(!is_valid(bad), "{bad}");
        }
        let error = check("job", "a.b")
            .expect_err("a dot splits a subject")
            .to_string();
        assert!(error.contains("job name \"a.b\""), "{error}");
    }
}
