-- The operator edits schedules, cancels, retries, resolves, looks after dead letters and grows the
-- partitions. It claims nothing and writes no output. It sees all that the reader sees.

GRANT SELECT ON attempt, dead_letter, definition, execution, fenced_result, fire, lease, non_fire,
    outbox, queue, schedule, schedule_timing, session, session_definition, stream, submission_key,
    term, ticker, verdict TO $1;

-- A retry and a replayed letter: born without claim and result.
GRANT INSERT (id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
    trigger, job, queue, priority, payload, content_type, traceparent, tracestate, timeout_ms,
    max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state, available_at,
    dispatch_no, dispatched_at, retry_of, retry_first_ms, retry_cap_ms, start_deadline_ms,
    policy_known, own_timeout) ON execution TO $1;
-- As a client's trigger.
GRANT INSERT (id, schedule_id, schedule_version, trigger, scheduled_at, shard_total, payload,
    content_type, traceparent, tracestate, partition, planned_at) ON fire TO $1;
GRANT INSERT (partition, map_version, epoch, zone_version, renewed_at, expires_at) ON lease TO $1;
GRANT INSERT (execution_id, dispatch_no, queue, priority, created_at) ON outbox TO $1;
GRANT INSERT (id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at, payload,
    content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms,
    origin, enabled, version, partition, cursor, history_from, created_at, description, code_hash,
    misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms,
    retry_cap_ms) ON schedule TO $1;
GRANT INSERT ON non_fire, queue, schedule_timing, verdict TO $1;

GRANT UPDATE (payload, resolved_at, resolution, replayed_as) ON dead_letter TO $1;
-- A cancel, and a verdict on what is unknown.
GRANT UPDATE (state, reason, attempts_exhausted, cancel_requested_at, cancel_lost, available_at,
    dispatch_no, dispatched_at, left_by, result_generation, error, escalated_at, ended_at,
    lost_dispatches, unclaimed_dispatches, checkpoint, checkpoint_at, probe_no, probe_id,
    probe_session_id, probe_claimed_at, probe_deadline_at) ON execution TO $1;
-- The growth of the partitions ends all terms.
GRANT UPDATE (map_version, expires_at) ON lease TO $1;
-- The map of the partitions.
GRANT UPDATE (partition_count, map_version) ON ledger TO $1;
-- Edits, pauses, removals, moves to other partitions.
GRANT UPDATE (job, queue, priority, kind, expr, zone, period_ms, anchor, at, payload, content_type,
    shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, enabled, version,
    partition, cursor, next_at, ended, fault, deleted_at, description, code_hash, edited_at,
    misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms,
    retry_cap_ms) ON schedule TO $1;
GRANT UPDATE (ended_at) ON term TO $1;
