-- The client asks for work: it enqueues (in a transaction of its own, too), triggers a schedule, waits for
-- results. It creates executions that wait, and can touch none that is there. What else a client
-- library offers (register, unregister, cancel, retry) is an operator's.

GRANT SELECT ON queue, schedule, submission_key TO $1;
GRANT SELECT (id, fire_id, shard_index, shard_total, job, queue, priority, state, reason,
    dispatch_no, dispatched_at, output, output_type, error) ON execution TO $1;
GRANT SELECT (id, shard_total) ON fire TO $1;

-- It waits: it is born without claim and result.
GRANT INSERT (id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
    trigger, job, queue, priority, key, payload, content_type, traceparent, tracestate, timeout_ms,
    max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state, available_at,
    dispatch_no, dispatched_at, retry_first_ms, retry_cap_ms) ON execution TO $1;
-- A trigger names no term.
GRANT INSERT (id, schedule_id, schedule_version, trigger, scheduled_at, shard_total, payload,
    content_type, traceparent, tracestate, partition, planned_at) ON fire TO $1;
GRANT INSERT (execution_id, dispatch_no, queue, priority, created_at) ON outbox TO $1;
GRANT INSERT ON queue, submission_key TO $1;
