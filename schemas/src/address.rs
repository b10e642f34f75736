//! Addresses of brokers and databases: who connects, and what may be shown of them.
//!
//! The NATS client library leaves user and password of an address unused, so whoever connects
//! hands them over.

/// Who connects.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// `nats://user:password@host`.
    User {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// `nats://token@host`.
    Token(String),
}

impl std::fmt::Debug for Credentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::User { .. } => "User",
            Self::Token(_) => "Token",
        })
    }
}

/// The credentials of an address, or of the first of several (separated by commas) that has
/// some. `%40` stands for `@` and so on.
pub fn credentials(url: &str) -> Option<Credentials> {
    let who = url.split(',').find_map(|one| {
        let rest = one.split_once("://").map_or(one, |(_, rest)| rest);
        let (who, _host) = rest.rsplit_once('@')?;
        Some(who.trim())
    })?;
    Some(match who.split_once(':') {
        Some((user, password)) => Credentials::User {
            user: decoded(user),
            password: decoded(password),
        },
        None => Credentials::Token(decoded(who)),
    })
}

/// The addresses of `url`, separated by commas, without credentials: what is given to a client
/// library, which would keep a password with the address and log both. Who connects is said by
/// [`credentials`].
pub fn servers(url: &str) -> Vec<String> {
    let servers = url.split(',').map(|one| {
        let one = one.trim();
        let (scheme, rest) = match one.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), one),
        };
        let host = rest.rsplit_once('@').map_or(rest, |(_who, host)| host);
        format!("{scheme}{host}")
    });
    servers.collect()
}

/// An address, or several separated by commas, as it may be shown: with `***` where a password
/// or a token stands. What could be part of one is hidden, too: a raw comma, `?` or `@` in a
/// password costs the rest of the address, never the secret.
pub fn masked(url: &str) -> String {
    // A comma separates addresses only where a scheme follows: it may be part of a password.
    let mut elements: Vec<String> = Vec::new();
    for piece in url.split(',') {
        match elements.last_mut() {
            Some(before) if !piece.contains("://") => {
                before.push(',');
                before.push_str(piece);
            }
            _ => elements.push(piece.to_owned()),
        }
    }
    let shown: Vec<_> = elements.iter().map(|one| masked_one(one.trim())).collect();
    shown.join(",")
}

fn masked_one(url: &str) -> String {
    if url.starts_with("sqlite:") {
        return url.to_owned();
    }
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // First: a password among the parameters may hold what looks like an end of credentials.
    let hidden = without_passwords(rest);
    let Some((who, host)) = hidden.rsplit_once('@') else {
        let shown = if rest.contains('@') { "***" } else { &hidden };
        return format!("{scheme}{shown}");
    };
    match who.split_once(':') {
        Some((user, _)) if !user.contains([',', '?', '/']) => format!("{scheme}{user}:***@{host}"),
        // NATS takes a lone word before the host as a token.
        None if scheme.starts_with("postgres") => format!("{scheme}{who}@{host}"),
        _ => format!("{scheme}***@{host}"),
    }
}

/// `?password=…` and the like, which Postgres takes.
fn without_passwords(rest: &str) -> String {
    let parameters: Vec<_> = rest
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => {
                format!("{name}=***")
            }
            // Words of another dialect: `host=db user=me password=…`.
            Some((_, value)) if value.to_ascii_lowercase().contains("password") => "***".to_owned(),
            _ => pair.to_owned(),
        })
        .collect();
    parameters.join("&")
}

/// `%xx` as the byte it stands for; anything else as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%');
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_who_connects() {
        let user = |user: &str, password: &str| {
            Some(Credentials::User {
                user: user.to_owned(),
                password: password.to_owned(),
            })
        };
        for (url, who) in [
            ("nats://host:4222", None),
            ("nats://me:secret@host:4222", user("me", "secret")),
            ("me:p%40ss%2f%25@host", user("me", "p@ss/%")),
            ("nats://me:100%@host", user("me", "100%")),
            ("nats://a:1,nats://me:x@b:1,nats://c", user("me", "x")),
            (
                "tls://t0ken@host",
                Some(Credentials::Token("t0ken".to_owned())),
            ),
        ] {
            assert_eq!(credentials(url), who, "{url}");
        }
        let shown = format!("{:?}", credentials("me:secret@host"));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn servers_are_named_without_who_connects() {
        for (url, all) in [
            ("nats://host:4222", vec!["nats://host:4222"]),
            ("nats://me:p@ss/w@host:4222", vec!["nats://host:4222"]),
            (
                "nats://a:1@x:1, tls://t0ken@y,z:3",
                vec!["nats://x:1", "tls://y", "z:3"],
            ),
            ("me:secret@[::1]:4222", vec!["[::1]:4222"]),
        ] {
            assert_eq!(servers(url), all, "{url}");
        }
    }

    #[test]
    fn passwords_and_tokens_are_not_shown() {
        for (url, shown) in [
            ("sqlite:a@b/c,d.db", "sqlite:a@b/c,d.db"),
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("postgres://me@host/db", "postgres://me@host/db"),
            (
                "postgres://me:p@ss:w@host/db?sslmode=disable",
                "postgres://me:***@host/db?sslmode=disable",
            ),
            (
                "postgres://host/db?user=me&password=secret",
                "postgres://host/db?user=me&password=***",
            ),
            ("nats://token@host:4222", "nats://***@host:4222"),
            (
                "nats://a:1@x:1, nats://b:2@y:2",
                "nats://a:***@x:1,nats://b:***@y:2",
            ),
            ("a:1,b:2", "a:1,b:2"),
            ("me:secret@host", "me:***@host"),
            // Raw where it should be escaped: still no part of it is shown.
            ("nats://u:se,cret@host", "nats://u:***@host"),
            ("nats://se,cret@host", "nats://***@host"),
            ("nats://u:se?c/ret@host", "nats://u:***@host"),
            (
                "nats://x:1,nats://u:se,cr:et@y:2",
                "nats://x:1,nats://u:***@y:2",
            ),
            ("u:se,cret@host", "u:***@host"),
            ("x:1,u:secret@host", "x:***@host"),
            (
                "postgres://u:s?e@host/db?a=b&sslPassword=c@d&x=y",
                "postgres://u:***@host/db?a=b&sslPassword=***&x=y",
            ),
            ("postgres://host/db?password=c@d", "postgres://***"),
        ] {
            assert_eq!(masked(url), shown);
        }
        let libpq = masked("host=db user=me password=secret");
        assert!(!libpq.contains("secret"), "{libpq}");
    }
}
