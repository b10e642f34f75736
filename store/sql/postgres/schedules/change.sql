-- Parameters as bound in schedules.rs: $1 id, $2 version and $3 cursor when it was read,
-- $4 enabled, $5 … $22 the definition, $23 author (null, 'operator', 'code'), $24 its hash,
-- $25 the cursor if it moves, $26 … $29 the range that it passes, $30 whether the timing differs,
-- $31 … $36 the rest of the definition.
--
-- A planner that holds the row is waited for; what it moved makes this a change of nothing. So does
-- a clock that was set back since the row was read: the new cursor would lie ahead of it.
WITH locked AS MATERIALIZED (
    SELECT * FROM schedule
    WHERE id = $1 AND version = $2 AND cursor = $3 AND deleted_at IS NULL
    FOR NO KEY UPDATE
),
fence AS MATERIALIZED (
    SELECT id, clock_timestamp() AS now FROM locked
),
changed AS (
    UPDATE schedule
    SET version           = schedule.version + 1,
        enabled           = $4,
        job               = $5,
        queue             = $6,
        priority          = $7,
        kind              = $8,
        expr              = $9,
        zone              = $10,
        period_ms         = $11,
        anchor            = $12,
        at                = $13,
        payload           = $14,
        content_type      = $15,
        shard_total       = $16,
        timeout_ms        = $17,
        max_attempts      = $18,
        start_deadline_ms = $19,
        on_lost           = $20,
        grace_ms          = $21,
        description       = $22,
        misfire           = $31,
        catch_up_max      = $32,
        catch_up_window_ms = $33,
        overlap           = $34,
        retry_first_ms    = $35,
        retry_cap_ms      = $36,
        code_hash         = CASE WHEN $23::text = 'code' THEN $24 ELSE schedule.code_hash END,
        edited_at         = CASE $23::text WHEN 'operator' THEN fence.now
                                           WHEN 'code' THEN NULL
                                           ELSE schedule.edited_at END,
        cursor            = coalesce($25, schedule.cursor),
        next_at           = CASE WHEN $25 IS NULL THEN schedule.next_at END,
        ended             = $25 IS NULL AND schedule.ended,
        fault             = CASE WHEN $25 IS NULL THEN schedule.fault END
    FROM fence
    WHERE schedule.id = fence.id
      -- A cursor that stays may lie ahead of a clock that was set back.
      AND ($25::timestamptz IS NULL OR $25 <= greatest(fence.now, schedule.cursor))
    RETURNING schedule.id, schedule.version, schedule.queue, schedule.cursor, schedule.kind,
              schedule.expr, schedule.zone, schedule.period_ms, schedule.anchor, schedule.at,
              fence.now
),
passed AS (
    INSERT INTO non_fire (
        schedule_id, schedule_version, reason, from_at, until_at, count, recorded_at
    )
    SELECT id, $2, $26, $27, $28, $29, now FROM changed
    WHERE $29::bigint IS NOT NULL
    ON CONFLICT (schedule_id, from_at) DO NOTHING
),
timed AS (
    INSERT INTO schedule_timing (
        schedule_id, version, valid_from, kind, expr, zone, period_ms, anchor, at
    )
    SELECT id, version, cursor, kind, expr, zone, period_ms, anchor, at FROM changed
    WHERE $30
),
-- A build that knew no history of timings registered it: what its timing was until now.
first_timed AS (
    INSERT INTO schedule_timing (
        schedule_id, version, valid_from, kind, expr, zone, period_ms, anchor, at
    )
    SELECT locked.id, locked.version, locked.history_from, locked.kind, locked.expr, locked.zone,
           locked.period_ms, locked.anchor, locked.at
    FROM changed
    JOIN locked ON locked.id = changed.id
    WHERE $30 AND NOT EXISTS (SELECT FROM schedule_timing WHERE schedule_id = locked.id)
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT queue, now FROM changed
    ON CONFLICT (name) DO NOTHING
)
SELECT version FROM changed
