-- $1 partition, $2 epoch, $3 term_id, $4 map_version
-- $5… steps, $14… fires, $21… executions: parallel arrays, as bound in planning.rs.
--
-- The lease row is held FOR KEY SHARE to the end: renewals go on, a takeover waits. Every
-- stamp is taken after that lock.
WITH term AS MATERIALIZED (
    SELECT partition, epoch, term_id
    FROM lease
    WHERE partition = $1 AND epoch = $2 AND term_id = $3 AND map_version = $4
      AND expires_at > clock_timestamp()
    FOR KEY SHARE
),
fence AS MATERIALIZED (
    SELECT term.*, clock_timestamp() AS now FROM term
),
step AS MATERIALIZED (
    SELECT * FROM unnest(
        $5::uuid[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::timestamptz[],
        $10::text[], $11::timestamptz[], $12::timestamptz[], $13::bigint[]
    ) WITH ORDINALITY AS step (
        schedule_id, version, cursor, new_cursor, new_next_at,
        fault, missed_from, missed_until, missed_count, ord
    )
),
moved AS (
    UPDATE schedule
    SET cursor  = step.new_cursor,
        next_at = step.new_next_at,
        ended   = step.new_next_at IS NULL AND step.fault IS NULL,
        fault   = step.fault
    FROM step, fence
    WHERE schedule.id = step.schedule_id
      AND schedule.partition = fence.partition
      AND schedule.version = step.version
      AND schedule.cursor = step.cursor
      AND schedule.enabled
      AND schedule.deleted_at IS NULL
      AND step.new_cursor >= step.cursor
      AND step.new_cursor <= clock_timestamp()
    RETURNING step.ord, step.missed_from, step.missed_until, step.missed_count,
              schedule.id, schedule.version, schedule.kind, schedule.job, schedule.queue,
              schedule.priority, schedule.payload, schedule.content_type, schedule.shard_total,
              schedule.timeout_ms, schedule.max_attempts, schedule.start_deadline_ms,
              schedule.on_lost, schedule.grace_ms
),
missed AS (
    INSERT INTO non_fire (
        schedule_id, schedule_version, reason, from_at, until_at, count, recorded_at
    )
    SELECT moved.id, moved.version, 'misfired', moved.missed_from, moved.missed_until,
           moved.missed_count, fence.now
    FROM moved, fence
    WHERE moved.missed_count IS NOT NULL
    ON CONFLICT (schedule_id, from_at) DO NOTHING
),
due AS MATERIALIZED (
    SELECT due.id, due.scheduled_at, due.nominal_local, due.fold, due.traceparent,
           nullif(due.tracestate, '') AS tracestate, moved.ord
    FROM unnest(
        $14::bigint[], $15::uuid[], $16::timestamptz[], $17::text[], $18::text[],
        $19::text[], $20::text[]
    ) AS due (ord, id, scheduled_at, nominal_local, fold, traceparent, tracestate)
    JOIN moved ON moved.ord = due.ord
),
fired AS (
    INSERT INTO fire (
        id, schedule_id, schedule_version, trigger, scheduled_at, nominal_local, fold,
        shard_total, payload, content_type, traceparent, tracestate, partition, epoch, term_id,
        planned_at
    )
    SELECT due.id, moved.id, moved.version, moved.kind, due.scheduled_at, due.nominal_local,
           due.fold, moved.shard_total, moved.payload, moved.content_type, due.traceparent,
           due.tracestate, fence.partition, fence.epoch, fence.term_id, fence.now
    FROM due JOIN moved ON moved.ord = due.ord CROSS JOIN fence
    ORDER BY due.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
-- The payload stays with the fire.
executed AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
        trigger, job, queue, priority, content_type, traceparent, tracestate, timeout_ms,
        max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state, available_at,
        dispatch_no, dispatched_at
    )
    SELECT shard.id, due.id, shard.shard_index, moved.shard_total, shard.id, moved.id,
           moved.version, moved.kind, moved.job, moved.queue, moved.priority, moved.content_type,
           due.traceparent, due.tracestate, moved.timeout_ms, moved.max_attempts, moved.on_lost,
           due.scheduled_at,
           -- A fire that made up for missed ones has its whole time from now on.
           CASE
               WHEN fence.now <= due.scheduled_at + moved.grace_ms * interval '1 millisecond'
               THEN due.scheduled_at ELSE fence.now
           END + moved.start_deadline_ms * interval '1 millisecond',
           fence.now, 'pending', due.scheduled_at, 1, fence.now
    FROM unnest($21::uuid[], $22::uuid[], $23::integer[]) AS shard (id, fire_id, shard_index)
    JOIN fired ON fired.id = shard.fire_id
    JOIN due ON due.id = fired.id
    JOIN moved ON moved.ord = due.ord
    CROSS JOIN fence
    ORDER BY shard.id
    ON CONFLICT DO NOTHING
    RETURNING id, queue, priority
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT executed.id, 1, executed.queue, executed.priority, fence.now
    FROM executed, fence
    ORDER BY executed.id
)
SELECT EXISTS (SELECT FROM fence) AS term_ok,
       ARRAY(SELECT id FROM moved ORDER BY ord) AS moved,
       (SELECT count(*) FROM fired) AS fires,
       (SELECT count(*) FROM due) - (SELECT count(*) FROM fired) AS fires_existing,
       (SELECT count(*) FROM executed) AS executions
