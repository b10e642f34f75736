//! Payloads and outputs for people: JSON as it is, anything else by its size and its beginning,
//! so that a terminal stays what it was.

use bellwether_schemas::header;
use bellwether_schemas::text::clean;
use bellwether_store::Payload;

/// Bytes of a body that is no JSON that are shown.
const BEGINNING: usize = 200;

/// JSON as it is, anything else by its size.
pub(crate) fn value(body: &Payload) -> serde_json::Value {
    json(body).unwrap_or_else(|| size(body).into())
}

/// On one line, cut to so many characters.
pub(crate) fn short(body: &Payload, chars_max: usize) -> String {
    clean(&value(body).to_string(), chars_max).into_owned()
}

/// On many lines, cut to so many characters.
pub(crate) fn pretty(body: &Payload, chars_max: usize) -> String {
    let Some(value) = json(body) else {
        let beginning = &body.bytes[..body.bytes.len().min(BEGINNING)];
        let rest = if beginning.len() < body.bytes.len() {
            " …"
        } else {
            ""
        };
        return format!("{}: \"{}\"{rest}", size(body), beginning.escape_ascii());
    };
    clean(&format!("{value:#}"), chars_max).into_owned()
}

/// Every byte as two hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('?');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// The value, if it is said to be JSON and is.
pub(crate) fn json(body: &Payload) -> Option<serde_json::Value> {
    if body.content_type == header::MSGPACK {
        return None;
    }
    serde_json::from_slice(&body.bytes).ok()
}

fn size(body: &Payload) -> String {
    format!("{} bytes of {:?}", body.bytes.len(), body.content_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_without_control_bytes() {
        let json = Payload::json(r#"{"n":[1]}"#);
        assert_eq!(pretty(&json, 80), "{\n  \"n\": [\n    1\n  ]\n}");
        assert_eq!(short(&json, 80), r#"{"n":[1]}"#);
        let raw = Payload::json(*b"\x1b[31mred\xff");
        assert_eq!(
            pretty(&raw, 80),
            r#"9 bytes of "application/json": "\x1b[31mred\xff""#
        );
        assert_eq!(hex(&raw.bytes[..2]), "1b5b");
        let deep = Payload::json("[".repeat(10_000));
        assert!(pretty(&deep, 80).starts_with("10000 bytes"));
    }
}
