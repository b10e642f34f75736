//! W3C trace context, carried from the fire through rows and headers.

use serde::{Deserialize, Serialize};

/// `tracestate` beyond this many bytes is dropped, as W3C allows.
const TRACESTATE_MAX: usize = 512;

/// The context a fire belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// `00-<32 hex trace id>-<16 hex parent id>-<2 hex flags>`.
    pub traceparent: String,
    /// Vendor state; empty = none.
    #[serde(default)]
    pub tracestate: String,
}

impl TraceContext {
    /// Accepts what W3C calls valid and drops the rest: a bad header from a client
    /// costs its trace, never its job.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace, parent, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let zero = |part: &str| part.bytes().all(|b| b == b'0');
        let shape = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
        if !shape || version == "ff" || zero(trace) || zero(parent) {
            return None;
        }
        // A later version may append fields; version 00 may not.
        if version == "00" && parts.next().is_some() {
            return None;
        }
        let tracestate = tracestate
            .filter(|state| {
                state.len() <= TRACESTATE_MAX && state.bytes().all(|b| (0x20..0x7f).contains(&b))
            })
            .unwrap_or_default();
        Some(Self {
            traceparent: format!("00-{trace}-{parent}-{flags}"),
            tracestate: tracestate.to_owned(),
        })
    }

    /// A new sampled root made of `seed`: the fire's id, so that planning the same
    /// fire twice names the same trace.
    pub fn root(seed: uuid::Uuid) -> Self {
        let mut hash = blake3::Hasher::new_derive_key("bellwether 2026 trace id");
        hash.update(seed.as_bytes());
        let hash = hash.finalize();
        let hex = hash.to_hex();
        Self {
            // The first byte is fixed so that neither id can be all zero.
            traceparent: format!("00-b{}-b{}-01", &hex[..31], &hex[32..47]),
            tracestate: String::new(),
        }
    }

    /// The 32 hex digits of the trace id.
    pub fn trace_id(&self) -> &str {
        self.traceparent.get(3..35).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_contexts_are_kept() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(good, Some("a=1")).unwrap();
        assert_eq!(
            (context.traceparent.as_str(), context.tracestate.as_str()),
            (good, "a=1")
        );
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad}");
        }
    }

    #[test]
    fn a_root_is_valid_and_follows_its_seed() {
        let root = TraceContext::root(uuid::Uuid::from_u128(9));
        assert_eq!(
            TraceContext::parse(&root.traceparent, None),
            Some(root.clone())
        );
        assert_eq!(root, TraceContext::root(uuid::Uuid::from_u128(9)));
    }
}
