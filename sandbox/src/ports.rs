//! Free loopback ports.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

use crate::Error;

/// How many ports are tried before giving up; on a test machine nearly all are free.
const TRIES: u64 = 200;

/// A port on 127.0.0.1 that nobody listens on right now.
///
/// It lies outside the range that the kernel hands to outgoing connections. A client that dials a
/// dead server again and again inside that range sooner or later gets the server's own port as its
/// source, is connected to itself, and keeps the server from coming back.
///
/// Somebody else may take the port before you do: be ready to ask for another.
///
/// # Errors
///
/// [`Error::Io`] if no port can be bound.
pub fn free_port() -> Result<u16, Error> {
    let range = outside_ephemeral();
    let span = u64::from(range.end() - range.start()) + 1;
    let first = random();
    for n in 0..TRIES {
        let offset = u16::try_from(first.wrapping_add(n) % span).unwrap_or_default();
        let port = range.start() + offset;
        if is_free(port) {
            return Ok(port);
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(Error::io("find a free loopback port"))
}

/// Does nobody listen on this loopback port?
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A number that differs from call to call and from process to process.
///
/// The standard library seeds its hash maps from the system's randomness; that is enough to keep
/// tests out of each other's way, and needs no further crate.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The larger of the two port ranges beside the one for outgoing connections.
fn outside_ephemeral() -> RangeInclusive<u16> {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let (low, high) = setting
        .ok()
        .as_deref()
        .and_then(parse_range)
        .unwrap_or((32_768, 60_999));
    let below = 10_000..=low.saturating_sub(1).max(10_000);
    let above = high.saturating_add(1)..=u16::MAX;
    if below.len() >= above.len() {
        below
    } else {
        above
    }
}

fn parse_range(setting: &str) -> Option<(u16, u16)> {
    let mut numbers = setting.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_lies_outside_the_range_for_outgoing_connections() {
        let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let (low, high) = parse_range(&setting).unwrap();
        for _ in 0..50 {
            let port = free_port().unwrap();
            assert!(
                !(low..=high).contains(&port),
                "{port} is inside {low}..={high}"
            );
        }
    }

    #[test]
    fn a_port_somebody_listens_on_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
