-- The relay moves the outbox to the broker and watches the streams. Of an execution it writes that
-- it was sent again, or that it can never be delivered; it reads no payload and no result.

GRANT SELECT ON outbox, queue, session, stream TO $1;
GRANT SELECT (job, key) ON dead_letter TO $1;
GRANT SELECT (id, fire_id, shard_index, shard_total, schedule_version, job, queue, priority,
    content_type, traceparent, tracestate, timeout_ms, scheduled_at, start_deadline_at, state,
    dispatch_no, dispatched_at, escalated_at, lost_dispatches, unclaimed_dispatches,
    probe_id) ON execution TO $1;

GRANT INSERT (job, key, queue, reason, detail, payload, recorded_at, content_type,
    execution_id) ON dead_letter TO $1;
GRANT INSERT (execution_id, dispatch_no, queue, priority, created_at) ON outbox TO $1;
GRANT INSERT ON stream TO $1;

-- Dispatched again, or never deliverable.
GRANT UPDATE (state, reason, dispatch_no, dispatched_at, error, ended_at, lost_dispatches,
    unclaimed_dispatches) ON execution TO $1;
GRANT UPDATE (leased_until) ON outbox TO $1;
GRANT UPDATE (created, last_seq, seen_at) ON stream TO $1;

GRANT DELETE ON outbox TO $1;
