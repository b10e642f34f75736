-- Parameters as bound in schedules.rs; $21 is the number that picks the partition.
-- A live schedule of the name stays as it is.
--
-- The ledger's row is held FOR KEY SHARE: a change of the number of partitions waits for this
-- schedule to be there, and a registration after it takes the new number.
WITH map AS MATERIALIZED (
    SELECT partition_count FROM ledger FOR KEY SHARE
),
clock AS MATERIALIZED (
    SELECT date_trunc('milliseconds', clock_timestamp()) AS now
),
inserted AS (
    INSERT INTO schedule (
        id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at, payload,
        content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms,
        origin, enabled, version, partition, cursor, history_from, created_at, description,
        code_hash, misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms, retry_cap_ms
    )
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9::bigint,
           CASE WHEN $9::bigint IS NOT NULL THEN coalesce($10, clock.now) END,
           $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
           true, 1, ($21::bigint % map.partition_count)::integer, clock.now, clock.now,
           clock.now, $22, $23, $24, $25, $26, $27, $28, $29
    FROM clock, map
    ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
    RETURNING id, queue, version, cursor, kind, expr, zone, period_ms, anchor, at
),
timed AS (
    INSERT INTO schedule_timing (
        schedule_id, version, valid_from, kind, expr, zone, period_ms, anchor, at
    )
    SELECT id, version, cursor, kind, expr, zone, period_ms, anchor, at FROM inserted
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT inserted.queue, clock.now FROM inserted, clock
    ON CONFLICT (name) DO NOTHING
)
SELECT id FROM inserted
