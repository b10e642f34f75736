-- Parallel arrays, as bound in submitted.rs; $16 session, $17 how long before its
-- key may be forgotten a message is stale (µs), $23 the shortest retention of keys (µs): a mark beyond
-- it is of a clock that was wrong. A key that is there already keeps its execution; a key being inserted by another
-- transaction is waited for. What is due and has a handler is inserted as running: recorded
-- and claimed at once.
--
-- An old message takes no key, whatever the snapshot says of it: one that is forgotten while this
-- statement runs would be free again. The second look (not_submitted.sql) answers it.
WITH owner AS MATERIALIZED (
    SELECT id FROM session WHERE id = $16 AND state = 'live'
),
ask AS MATERIALIZED (
    SELECT ask.*,
           ask.stored_at < least(
               ledger.keys_marked_to, clock_timestamp() - $23::bigint * interval '1 microsecond'
           ) + $17::bigint * interval '1 microsecond' AS old
    FROM owner, ledger, unnest(
        $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[],
        $8::text[], $9::timestamptz[], $10::bigint[], $11::integer[], $12::bigint[],
        $13::text[], $14::timestamptz[], $15::boolean[], $18::text[], $19::text[], $20::bigint[], $21::bigint[],
        $22::boolean[]
    ) WITH ORDINALITY AS ask (
        id, fire_id, claim_id, job, queue, key, payload,
        content_type, run_at, timeout_ms, max_attempts, start_deadline_ms,
        on_lost, stored_at, has_handler, traceparent, tracestate, retry_first_ms, retry_cap_ms,
        own_timeout, ord
    )
),
judged AS MATERIALIZED (
    SELECT ask.*,
           ask.old AND NOT EXISTS (
               SELECT FROM submission_key
               WHERE submission_key.job = ask.job AND submission_key.key = ask.key
           ) AS stale
    FROM ask
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT DISTINCT queue, clock_timestamp() FROM ask ORDER BY queue
    ON CONFLICT (name) DO NOTHING
),
letters AS (
    INSERT INTO dead_letter (
        job, key, queue, reason, detail, payload, content_type, recorded_at
    )
    SELECT job, key, queue, 'stale', 'stored at ' || stored_at || ', longer ago than keys are kept',
           payload, content_type, clock_timestamp()
    FROM judged
    WHERE stale
    ORDER BY job, key, ord
    ON CONFLICT (job, key) DO NOTHING
),
keyed AS (
    INSERT INTO submission_key (job, key, execution_id, created_at)
    SELECT job, key, id, clock_timestamp() FROM ask WHERE NOT old ORDER BY job, key, ord
    ON CONFLICT (job, key) DO NOTHING
    RETURNING execution_id
),
-- Stamped after the wait for the key.
new AS MATERIALIZED (
    SELECT ask.*, clock_timestamp() AS now
    FROM keyed JOIN ask ON ask.id = keyed.execution_id
),
recorded AS MATERIALIZED (
    SELECT new.*,
           has_handler AND (run_at IS NULL OR run_at <= now) AS runs,
           greatest(run_at, now) AS due_at
    FROM new
),
inserted AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, trigger, job, queue, priority, key,
        payload, content_type, traceparent, tracestate, timeout_ms, max_attempts, on_lost,
        scheduled_at, start_deadline_at, created_at, state, available_at, defer_count,
        last_refusal, attempt, generation, claim_id, session_id, claimed_at, deadline_at,
        retry_first_ms, retry_cap_ms, policy_known, own_timeout
    )
    SELECT id, fire_id, 0, 1, id, 'submit', job, queue, 'normal', key, payload, content_type,
           traceparent, nullif(tracestate, ''), timeout_ms, max_attempts, on_lost, due_at,
           due_at + start_deadline_ms * interval '1 millisecond', now,
           CASE WHEN runs THEN 'running' ELSE 'pending' END,
           CASE WHEN has_handler THEN due_at ELSE greatest(due_at, now + interval '1 second') END,
           CASE WHEN has_handler THEN 0 ELSE 1 END,
           CASE WHEN has_handler THEN NULL ELSE 'no_handler' END,
           CASE WHEN runs THEN 1 ELSE 0 END,
           CASE WHEN runs THEN 1 ELSE 0 END,
           CASE WHEN runs THEN claim_id END,
           CASE WHEN runs THEN $16 END,
           CASE WHEN runs THEN now END,
           CASE WHEN runs THEN
               now + interval '2 seconds' + timeout_ms * interval '1 millisecond' END,
           retry_first_ms, retry_cap_ms, has_handler, own_timeout
    FROM recorded
    ORDER BY id
    RETURNING id, state, scheduled_at, deadline_at
)
SELECT EXISTS (SELECT FROM owner) AS live, judged.id, judged.stale,
       inserted.state, inserted.scheduled_at, inserted.deadline_at
FROM (VALUES (1)) AS one
LEFT JOIN judged ON true
LEFT JOIN inserted ON inserted.id = judged.id
