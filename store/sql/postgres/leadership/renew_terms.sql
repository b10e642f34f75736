-- $1 partitions, $2 epochs, $3 term_ids, $4 map_versions, $5 lease (µs)
-- Locked in the order of the partitions, as a change of their number does it. FOR NO KEY UPDATE is
-- what an update of non-key columns takes: it does not wait for planners, it waits for a takeover.
WITH locked AS MATERIALIZED (
    SELECT own.ord, lease.partition
    FROM unnest($1::integer[], $2::bigint[], $3::uuid[], $4::bigint[]) WITH ORDINALITY
        AS own (partition, epoch, term_id, map_version, ord)
    JOIN lease ON lease.partition = own.partition
        AND lease.epoch = own.epoch AND lease.term_id = own.term_id
        AND lease.map_version = own.map_version
    ORDER BY lease.partition
    FOR NO KEY UPDATE OF lease
)
UPDATE lease
SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond'
FROM locked
WHERE lease.partition = locked.partition AND lease.expires_at > clock_timestamp()
RETURNING locked.ord
