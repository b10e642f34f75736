//! Identities.
//!
//! What has a natural key is identified by it: planning the same instant again
//! (a repeated transaction, a restored backup) gives the same id, so that the
//! insert meets itself and changes nothing. Derived ids are `UUIDv8`: 48 bits of
//! the due instant in milliseconds, then a hash, so they sort by time like v7.

use uuid::Uuid;

/// The id of the fire of `schedule_id` at the due instant `scheduled_at_ms` (Unix ms, UTC).
pub fn fire(schedule_id: Uuid, scheduled_at_ms: i64) -> Uuid {
    let mut hash = blake3::Hasher::new_derive_key("bellwether 2026 fire id");
    hash.update(schedule_id.as_bytes());
    hash.update(&scheduled_at_ms.to_be_bytes());
    v8(millis_prefix(scheduled_at_ms), &hash)
}

/// The id of the execution of shard `shard_index` of `fire_id`; shares the fire's time prefix.
pub fn execution(fire_id: Uuid, shard_index: u32) -> Uuid {
    let mut hash = blake3::Hasher::new_derive_key("bellwether 2026 execution id");
    hash.update(fire_id.as_bytes());
    hash.update(&shard_index.to_be_bytes());
    let mut prefix = [0; 6];
    prefix.copy_from_slice(&fire_id.as_bytes()[..6]);
    v8(prefix, &hash)
}

/// A fresh, time-ordered id for what has no natural key: a schedule, a manual
/// fire, a session. Only its uniqueness is relied on, never its order.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where ids are made"
)]
pub fn fresh() -> Uuid {
    Uuid::now_v7()
}

/// A random token: claim ids and term ids, which nobody may guess or repeat.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where ids are made"
)]
pub fn token() -> Uuid {
    Uuid::new_v4()
}

fn millis_prefix(millis: i64) -> [u8; 6] {
    // Instants before 1970 share the prefix 0; the hash still tells them apart.
    let bytes = u64::try_from(millis).unwrap_or(0).to_be_bytes();
    [bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

fn v8(prefix: [u8; 6], hash: &blake3::Hasher) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&prefix);
    bytes[6..].copy_from_slice(&hash.finalize().as_bytes()[..10]);
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_are_stable_and_time_ordered() {
        let schedule = Uuid::from_u128(7);
        let first = fire(schedule, 1_750_000_000_000);
        assert_eq!(first, fire(schedule, 1_750_000_000_000));
        assert_eq!(first.to_string(), "01977420-dc00-8b5f-8e8d-a49c846aa142");
        assert!(first < fire(schedule, 1_750_000_000_001));
        assert_ne!(first, fire(Uuid::from_u128(8), 1_750_000_000_000));
        let shards: std::collections::BTreeSet<_> =
            (0..1000).map(|i| execution(first, i)).collect();
        assert_eq!(shards.len(), 1000);
        assert!(
            shards
                .iter()
                .all(|id| id.as_bytes()[..6] == first.as_bytes()[..6])
        );
        assert_eq!(first.get_version_num(), 8);
    }
}
