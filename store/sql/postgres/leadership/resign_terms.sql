-- $1 partitions, $2 epochs, $3 term_ids
-- FOR UPDATE waits for planners of these terms, so that each ends after its last fire. Locked in
-- the order of the partitions, as a change of their number does it.
WITH locked AS MATERIALIZED (
    SELECT lease.partition, lease.epoch, lease.term_id
    FROM unnest($1::integer[], $2::bigint[], $3::uuid[]) AS own (partition, epoch, term_id)
    JOIN lease ON lease.partition = own.partition
        AND lease.epoch = own.epoch AND lease.term_id = own.term_id
    ORDER BY lease.partition
    FOR UPDATE OF lease
),
stamped AS MATERIALIZED (
    SELECT locked.*, clock_timestamp() AS now FROM locked
),
given_back AS (
    UPDATE lease SET expires_at = least(lease.expires_at, stamped.now)
    FROM stamped
    WHERE lease.partition = stamped.partition
)
UPDATE term SET ended_at = stamped.now
FROM stamped
WHERE term.partition = stamped.partition AND term.epoch = stamped.epoch
  AND term.term_id = stamped.term_id AND term.ended_at IS NULL
