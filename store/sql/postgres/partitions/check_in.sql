-- $1 id, $2 holder, $3 host, $4 pid, $5 version, $6 map_version, $7 whether it bids,
-- $8 rows not seen for so long are forgotten (µs)
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
gone AS MATERIALIZED (
    SELECT id FROM ticker
    WHERE seen_at < (SELECT now FROM clock) - $8::bigint * interval '1 microsecond'
      AND id <> $1
    FOR UPDATE SKIP LOCKED
),
forgotten AS (
    DELETE FROM ticker
    USING gone
    WHERE ticker.id = gone.id
)
INSERT INTO ticker (id, holder, host, pid, version, map_version, bids, started_at, seen_at)
SELECT $1, $2, $3, $4, $5, $6, $7, now, now FROM clock
ON CONFLICT (id) DO UPDATE
SET map_version = excluded.map_version, bids = excluded.bids, seen_at = excluded.seen_at
