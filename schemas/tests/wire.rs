//! The wire contract: golden bytes, old readers, hostile bytes.

use bellwether_schemas::limits::DISPATCH_MAX;
use bellwether_schemas::subject::WIRE_VERSION;
use bellwether_schemas::trace::TraceContext;
use bellwether_schemas::wire::{DecodeError, Dispatch, KIND_DISPATCH, decode, encode};
use proptest::prelude::*;
use uuid::Uuid;

const GOLDEN: &[u8] = include_bytes!("../testdata/dispatch-v1.mpk");

fn sample() -> Dispatch {
    Dispatch {
        v: WIRE_VERSION,
        kind: KIND_DISPATCH.to_owned(),
        ledger_id: Uuid::from_u128(1),
        job: "nightly-report".to_owned(),
        fire_id: Uuid::from_u128(2),
        execution_id: Uuid::from_u128(3),
        dispatch_no: 4,
        shard_index: 5,
        shard_total: 8,
        schedule_version: Some(6),
        scheduled_at_ms: 1_750_000_000_000,
        start_deadline_ms: 1_750_086_400_000,
        timeout_ms: 300_000,
        trace: Some(TraceContext::root(Uuid::from_u128(2))),
    }
}

/// The bytes that were released stay readable, and today's writer still makes them. A
/// renamed field of a domain type cannot change them: `Dispatch` is the only type encoded.
#[test]
fn r07_golden_bytes_are_unchanged() {
    assert_eq!(
        encode(&sample()).unwrap(),
        GOLDEN,
        "the wire format changed: that is a new version"
    );
    assert_eq!(decode(GOLDEN).unwrap(), sample());
}

/// Bytes carry data only: no type names of the program, and a hostile `kind` selects nothing.
#[test]
fn r08_a_hostile_frame_cannot_choose_a_type() {
    let text = String::from_utf8_lossy(GOLDEN);
    for name in ["Dispatch", "bellwether_", "TraceContext", "::"] {
        assert!(!text.contains(name), "{name} is on the wire");
    }
    let hostile = Dispatch {
        kind: "std::process::Command".to_owned(),
        ..sample()
    };
    assert!(matches!(
        decode(&encode(&hostile).unwrap()),
        Err(DecodeError::Kind(_))
    ));
}

/// The codec needs no server, and both ends use this one module: an old reader skips what
/// a newer writer adds, and refuses a version it does not know before reading the rest.
#[test]
fn r10_the_codec_stands_alone() {
    #[derive(serde::Serialize)]
    struct Newer {
        v: u16,
        kind: &'static str,
        body: Vec<u64>,
    }
    let newer = rmp_serde::to_vec_named(&Newer {
        v: 2,
        kind: "dispatch",
        body: vec![1, 2],
    })
    .unwrap();
    assert!(matches!(decode(&newer), Err(DecodeError::Version(2))));

    // A map of 14 fields becomes one of 15: `"later": [1]`.
    let mut more = encode(&sample()).unwrap();
    assert_eq!(more[0], 0x8e);
    more[0] = 0x8f;
    more.extend_from_slice(b"\xa5later\x91\x01");
    assert_eq!(decode(&more).unwrap(), sample());
}

#[test]
fn size_is_checked_before_decoding() {
    assert!(matches!(
        decode(&vec![0; DISPATCH_MAX + 1]),
        Err(DecodeError::TooLarge(_))
    ));
    assert!(matches!(decode(b""), Err(DecodeError::Malformed(_))));
    let nested = vec![0x91_u8; DISPATCH_MAX];
    assert!(
        matches!(decode(&nested), Err(DecodeError::Malformed(_))),
        "16,384 levels deep"
    );
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes).map(|dispatch| encode(&dispatch));
    }

    #[test]
    fn dispatches_read_back(no in any::<u32>(), job in "[a-z]{1,64}", due in any::<i64>()) {
        let dispatch = Dispatch { dispatch_no: no, job, scheduled_at_ms: due, ..sample() };
        prop_assert_eq!(decode(&encode(&dispatch).unwrap()).unwrap(), dispatch);
    }
}
