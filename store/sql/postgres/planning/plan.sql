-- $1 partition, $2 epoch, $3 term_id, $4 map_version
-- $5… steps, $15… fires, $22… executions: parallel arrays, as bound in planning.rs.
--
-- The lease row is held FOR KEY SHARE to the end: renewals go on, a takeover waits. Every
-- stamp is taken after that lock.
--
-- Overlap is decided by what this statement's snapshot shows of a schedule's executions; no row
-- of them is locked, so a commit or a user's transaction never waits for planning nor planning for
-- them. That never lets two run:
-- * Only plans, releases, manual triggers and retries begin something. No state is reopened, so
--   nothing else becomes unfinished behind the snapshot's back.
-- * An earlier plan of the same schedule is in the snapshot: it moved the cursor, and `moved` finds
--   a row only where the snapshot shows the cursor that the step names, and changes it only if it
--   still stands there once the row is locked. A row that is not free is left out (`taken`).
-- * A release lets go a fire that is held. Held is unfinished, so as long as the snapshot shows it
--   held, no instant fires here; if not, the snapshot shows what was let go.
-- * Triggers and retries are an operator's wish. They are not asked for the policy, and count as
--   unfinished as soon as they are seen.
-- What ends behind the snapshot's back is still counted: an instant may be skipped, held or
-- coalesced that could have fired a moment later, and is recorded as such.
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
        $10::text[], $11::timestamptz[], $12::timestamptz[], $13::bigint[], $14::text[]
    ) WITH ORDINALITY AS step (
        schedule_id, version, cursor, new_cursor, new_next_at,
        fault, missed_from, missed_until, missed_count, overlap, ord
    )
),
-- A row that another holds (an edit, a hand, another plan) stops no other schedule: its step is left
-- out like one that came too late, and read again. What is taken here is still compared below: the
-- lock may have been got on a row that moved after the snapshot.
taken AS MATERIALIZED (
    SELECT schedule.id, step.ord
    FROM fence
    CROSS JOIN step
    JOIN schedule ON schedule.id = step.schedule_id
    WHERE schedule.partition = fence.partition
      AND schedule.version = step.version
      AND schedule.cursor = step.cursor
    ORDER BY schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
),
moved AS (
    UPDATE schedule
    SET cursor  = step.new_cursor,
        next_at = step.new_next_at,
        ended   = step.new_next_at IS NULL AND step.fault IS NULL,
        fault   = step.fault
    FROM taken
    JOIN step ON step.ord = taken.ord
    CROSS JOIN fence
    WHERE schedule.id = taken.id
      AND schedule.partition = fence.partition
      AND schedule.version = step.version
      AND schedule.cursor = step.cursor
      AND schedule.overlap = step.overlap
      AND schedule.enabled
      AND schedule.deleted_at IS NULL
      AND step.new_cursor >= step.cursor
      AND step.new_cursor <= clock_timestamp()
    RETURNING step.ord, step.cursor AS old_cursor, step.missed_from, step.missed_until, step.missed_count,
              schedule.id, schedule.version, schedule.kind, schedule.job, schedule.queue,
              schedule.priority, schedule.payload, schedule.content_type, schedule.shard_total,
              schedule.timeout_ms, schedule.max_attempts, schedule.start_deadline_ms,
              schedule.on_lost, schedule.grace_ms, schedule.overlap, schedule.retry_first_ms,
              schedule.retry_cap_ms
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
           nullif(due.tracestate, '') AS tracestate, moved.ord, moved.id AS schedule_id,
           moved.overlap, moved.overlap <> 'allow' AS asks
    FROM unnest(
        $15::bigint[], $16::uuid[], $17::timestamptz[], $18::text[], $19::text[],
        $20::text[], $21::text[]
    ) AS due (ord, id, scheduled_at, nominal_local, fold, traceparent, tracestate)
    JOIN moved ON moved.ord = due.ord
),
-- What the overlap policy looks at; a fire that is there already is a repeat and not asked again.
-- LIMIT 1 in the order of execution_unfinished keeps each a probe of that index: an EXISTS may become a
-- hash of all that is unfinished, and without the order (or in that of the id alone) the planner walks
-- the table, or its key, to a first row that may not be there.
seen AS MATERIALIZED (
    SELECT due.*,
           CASE WHEN asks THEN (
               SELECT true FROM fire WHERE fire.id = due.id LIMIT 1
           ) END IS NOT NULL AS there,
           CASE WHEN asks THEN (
               SELECT true FROM execution
               WHERE execution.schedule_id = due.schedule_id
                 AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
                 AND execution.held
               ORDER BY execution.held, execution.id
               LIMIT 1
           ) END IS NOT NULL AS waits,
           CASE WHEN asks THEN (
               SELECT execution.fire_id FROM execution
               WHERE execution.schedule_id = due.schedule_id
                 AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
                 AND NOT execution.held
               ORDER BY execution.held DESC, execution.id DESC
               LIMIT 1
           ) END AS unfinished
    FROM due
),
ruled AS MATERIALIZED (
    SELECT seen.*,
           CASE
               WHEN NOT asks OR there OR unfinished IS NULL AND NOT waits THEN 'fires'
               WHEN overlap = 'skip' THEN 'skipped'
               WHEN waits THEN 'coalesced'
               ELSE 'held'
           END AS rule
    FROM seen
),
-- The newest 1,000 executions are as many as a fire can have; what is behind them, the next instant asks.
stopped AS MATERIALIZED (
    SELECT ARRAY(
               SELECT execution.fire_id FROM execution
               WHERE execution.schedule_id = ruled.schedule_id
                 AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
                 AND NOT execution.held
               ORDER BY execution.held DESC, execution.id DESC
               LIMIT 1000
           ) AS fires
    FROM ruled
    WHERE overlap = 'replace' AND rule IN ('held', 'coalesced')
),
-- A sweep hands the request on to the executions, which no planner locks. An operator's retry has
-- no fire's row: it is waited for.
replaced AS (
    UPDATE fire
    SET cancel_requested_at = fence.now
    FROM stopped
    CROSS JOIN fence
    WHERE fire.id = ANY (stopped.fires)
      AND fire.cancel_requested_at IS NULL
),
-- What did not fire joins the range that ends at the instant before it, if that has the same reason.
joined AS (
    UPDATE non_fire
    SET until_at = ruled.scheduled_at, count = non_fire.count + 1, recorded_at = fence.now
    FROM ruled
    JOIN moved ON moved.ord = ruled.ord
    CROSS JOIN fence
    WHERE ruled.rule IN ('skipped', 'coalesced')
      AND moved.missed_count IS NULL
      AND non_fire.schedule_id = moved.id
      AND non_fire.from_at = (
          SELECT max(latest.from_at) FROM non_fire AS latest WHERE latest.schedule_id = moved.id
      )
      AND non_fire.until_at = moved.old_cursor
      AND non_fire.reason = ruled.rule
      AND non_fire.schedule_version = moved.version
    RETURNING ruled.ord
),
overlapped AS (
    INSERT INTO non_fire (
        schedule_id, schedule_version, reason, from_at, until_at, count, recorded_at
    )
    SELECT moved.id, moved.version, ruled.rule, ruled.scheduled_at, ruled.scheduled_at, 1,
           fence.now
    FROM ruled
    JOIN moved ON moved.ord = ruled.ord
    CROSS JOIN fence
    WHERE ruled.rule IN ('skipped', 'coalesced')
      AND NOT EXISTS (SELECT FROM joined WHERE joined.ord = ruled.ord)
    ON CONFLICT (schedule_id, from_at) DO NOTHING
),
fired AS (
    INSERT INTO fire (
        id, schedule_id, schedule_version, trigger, scheduled_at, nominal_local, fold,
        shard_total, payload, content_type, traceparent, tracestate, partition, epoch, term_id,
        planned_at, held_behind
    )
    SELECT ruled.id, moved.id, moved.version, moved.kind, ruled.scheduled_at, ruled.nominal_local,
           ruled.fold, moved.shard_total, moved.payload, moved.content_type, ruled.traceparent,
           ruled.tracestate, fence.partition, fence.epoch, fence.term_id, fence.now,
           CASE WHEN ruled.rule = 'held' THEN ruled.unfinished END
    FROM ruled JOIN moved ON moved.ord = ruled.ord CROSS JOIN fence
    WHERE ruled.rule IN ('fires', 'held')
    ORDER BY ruled.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, held_behind IS NOT NULL AS held
),
-- The payload stays with the fire. What is held is dispatched when it is let go.
executed AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
        trigger, job, queue, priority, content_type, traceparent, tracestate, timeout_ms,
        max_attempts, on_lost, scheduled_at, start_deadline_ms, start_deadline_at, created_at, state,
        available_at, dispatch_no, dispatched_at, held, retry_first_ms, retry_cap_ms
    )
    SELECT shard.id, due.id, shard.shard_index, moved.shard_total, shard.id, moved.id,
           moved.version, moved.kind, moved.job, moved.queue, moved.priority, moved.content_type,
           due.traceparent, due.tracestate, moved.timeout_ms, moved.max_attempts, moved.on_lost,
           due.scheduled_at, moved.start_deadline_ms, time.start_deadline_at, fence.now, 'pending',
           -- A build that knows nothing of holding would start it as soon as it is due.
           CASE WHEN fired.held THEN time.start_deadline_at ELSE due.scheduled_at END,
           CASE WHEN fired.held THEN 0 ELSE 1 END,
           CASE WHEN NOT fired.held THEN fence.now END,
           fired.held, moved.retry_first_ms, moved.retry_cap_ms
    FROM unnest($22::uuid[], $23::uuid[], $24::integer[]) AS shard (id, fire_id, shard_index)
    JOIN fired ON fired.id = shard.fire_id
    JOIN due ON due.id = fired.id
    JOIN moved ON moved.ord = due.ord
    CROSS JOIN fence
    -- A fire that made up for missed ones has its whole time from now on.
    CROSS JOIN LATERAL (
        SELECT CASE
                   WHEN fence.now <= due.scheduled_at + moved.grace_ms * interval '1 millisecond'
                   THEN due.scheduled_at ELSE fence.now
               END + moved.start_deadline_ms * interval '1 millisecond' AS start_deadline_at
    ) AS time
    ORDER BY shard.id
    ON CONFLICT DO NOTHING
    RETURNING id, queue, priority, held
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT executed.id, 1, executed.queue, executed.priority, fence.now
    FROM executed, fence
    WHERE NOT executed.held
    ORDER BY executed.id
)
SELECT EXISTS (SELECT FROM fence) AS term_ok,
       ARRAY(SELECT id FROM moved ORDER BY ord) AS moved,
       (SELECT count(*) FROM fired) AS fires,
       (SELECT count(*) FROM ruled WHERE rule IN ('fires', 'held'))
           - (SELECT count(*) FROM fired) AS fires_existing,
       (SELECT count(*) FROM executed) AS executions,
       (SELECT count(*) FROM fired WHERE held) AS held,
       ARRAY(
           SELECT schedule_id FROM ruled WHERE rule IN ('skipped', 'coalesced') ORDER BY ord
       ) AS passed,
       ARRAY(
           SELECT rule FROM ruled WHERE rule IN ('skipped', 'coalesced') ORDER BY ord
       ) AS passed_why
