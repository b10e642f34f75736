-- $1 partitions, $2 map_version
-- With all locks held: every stamp is later than the last fire of each term. A row that is added
-- goes on where the terms of its partition, if there were any, have ended.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
ended AS (
    UPDATE term SET ended_at = greatest(clock.now, term.started_at)
    FROM lease, clock
    WHERE term.partition = lease.partition AND term.epoch = lease.epoch AND term.ended_at IS NULL
),
expired AS (
    UPDATE lease
    SET map_version = $2, expires_at = least(lease.expires_at, clock.now)
    FROM clock
),
added AS (
    INSERT INTO lease (partition, map_version, epoch, zone_version, renewed_at, expires_at)
    SELECT missing.partition, $2,
           coalesce((SELECT max(epoch) FROM term WHERE term.partition = missing.partition), 0),
           coalesce((SELECT max(zone_version COLLATE "C") FROM lease), ''), clock.now, clock.now
    FROM generate_series(0, $1::integer - 1) AS missing (partition), clock
    ON CONFLICT (partition) DO NOTHING
)
UPDATE ledger SET partition_count = $1, map_version = $2
