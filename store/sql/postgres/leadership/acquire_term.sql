-- $1 partition, $2 map_version, $3 zone_version, $4 term_id, $5 holder, $6 lease (µs)
--
-- The row is locked FOR UPDATE before anything is decided: that waits for planners, which
-- hold it FOR KEY SHARE; a plain update of non-key columns would not. Every stamp is taken
-- with the lock held.
WITH locked AS MATERIALIZED (
    SELECT partition, map_version, epoch, term_id, holder, zone_version, renewed_at, expires_at
    FROM lease
    WHERE partition = $1
    FOR UPDATE
),
stamped AS MATERIALIZED (
    SELECT locked.*, clock_timestamp() AS now FROM locked
),
judged AS MATERIALIZED (
    SELECT stamped.*,
           map_version <> $2 AS map_changed,
           zone_version COLLATE "C" > $3 AS zone_older,
           expires_at > now AS held
    FROM stamped
),
won AS (
    UPDATE lease
    SET epoch        = judged.epoch + 1,
        term_id      = $4,
        holder       = $5,
        zone_version = $3,
        renewed_at   = judged.now,
        expires_at   = judged.now + $6::bigint * interval '1 microsecond'
    FROM judged
    WHERE lease.partition = judged.partition
      AND NOT judged.map_changed AND NOT judged.zone_older AND NOT judged.held
    RETURNING lease.epoch
),
-- The old term's row exists; the insert never happens. As an upsert it also finds a row that
-- was committed after this statement's snapshot, while it waited for the lock.
ended AS (
    INSERT INTO term (partition, epoch, term_id, holder, started_at, ended_at)
    SELECT judged.partition, judged.epoch, judged.term_id, judged.holder, judged.renewed_at, judged.now
    FROM judged, won
    WHERE judged.term_id IS NOT NULL
    ON CONFLICT (partition, epoch) DO UPDATE SET ended_at = excluded.ended_at
        WHERE term.ended_at IS NULL
),
started AS (
    INSERT INTO term (partition, epoch, term_id, holder, started_at)
    SELECT judged.partition, won.epoch, $4, $5, judged.now FROM judged, won
)
SELECT won.epoch AS won_epoch,
       judged.map_changed,
       judged.zone_older,
       judged.zone_version AS required,
       coalesce(judged.holder, '') AS holder,
       (extract(epoch FROM judged.expires_at - judged.now) * 1000000)::bigint AS remaining_us
FROM judged LEFT JOIN won ON true
