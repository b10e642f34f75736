-- Parallel arrays, as bound in enqueue.rs. A key or an id that is there already keeps its
-- execution, and an id that is there takes no other key; a key being inserted by another transaction is waited for.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
new AS MATERIALIZED (
    SELECT new.*, clock.now,
           new.run_at IS NULL OR new.run_at <= clock.now AS due,
           greatest(new.run_at, clock.now) AS due_at,
           row_number() OVER (PARTITION BY new.id ORDER BY new.ord) = 1
               AND NOT EXISTS (SELECT FROM execution WHERE execution.id = new.id) AS fresh
    FROM clock, unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[],
        $8::timestamptz[], $9::bigint[], $10::integer[], $11::bigint[], $12::text[],
        $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[]
    ) WITH ORDINALITY AS new (
        id, fire_id, job, queue, priority, payload, content_type,
        run_at, timeout_ms, max_attempts, start_deadline_ms, on_lost,
        key, traceparent, tracestate, retry_first_ms, retry_cap_ms, ord
    )
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT DISTINCT queue, now FROM new ORDER BY queue
    ON CONFLICT (name) DO NOTHING
),
keyed AS (
    INSERT INTO submission_key (job, key, execution_id, created_at)
    SELECT job, key, id, now FROM new WHERE key IS NOT NULL AND fresh ORDER BY job, key, ord
    ON CONFLICT (job, key) DO NOTHING
    RETURNING job, key, execution_id
),
inserted AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, trigger, job, queue, priority, key,
        payload, content_type, traceparent, tracestate, timeout_ms, max_attempts, on_lost,
        scheduled_at, start_deadline_at, created_at, state, available_at, dispatch_no,
        dispatched_at, retry_first_ms, retry_cap_ms
    )
    SELECT new.id, new.fire_id, 0, 1, new.id, 'once', new.job, new.queue, new.priority, new.key,
           new.payload, new.content_type, new.traceparent, nullif(new.tracestate, ''),
           new.timeout_ms, new.max_attempts, new.on_lost, new.due_at,
           new.due_at + new.start_deadline_ms * interval '1 millisecond',
           new.now, 'pending', new.due_at,
           CASE WHEN new.due THEN 1 ELSE 0 END,
           CASE WHEN new.due THEN new.now END,
           new.retry_first_ms, new.retry_cap_ms
    FROM new
    LEFT JOIN keyed
        ON keyed.job = new.job AND keyed.key = new.key AND keyed.execution_id = new.id
    WHERE new.key IS NULL OR keyed.execution_id IS NOT NULL
    ORDER BY new.id
    ON CONFLICT DO NOTHING
    RETURNING id, queue, priority, dispatch_no, dispatched_at
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, dispatch_no, queue, priority, dispatched_at FROM inserted
    WHERE dispatched_at IS NOT NULL
    ORDER BY id
)
SELECT id FROM inserted
