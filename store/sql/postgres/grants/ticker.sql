-- The ticker leads, plans, sweeps and forgets. It claims nothing, writes no result, and reads neither the
-- payload nor the output of an execution. Whose transactions keep dead rows from being removed it sees
-- only as a member of pg_read_all_stats, which a superuser may make it.

GRANT SELECT ON attempt, definition, lease, non_fire, outbox, schedule, schedule_timing, session,
    session_definition, submission_key, term, ticker TO $1;
GRANT SELECT (id, execution_id, resolved_at) ON dead_letter TO $1;
GRANT SELECT (id, fire_id, operation_id, schedule_id, job, queue, priority, key, max_attempts,
    on_lost, start_deadline_at, state, reason, cancel_requested_at, available_at, dispatch_no,
    dispatched_at, last_refusal, attempt, generation, session_id, deadline_at, attempt_ended_at,
    escalated_at, ended_at, retry_of, held, probe_id, probe_session_id, probe_deadline_at,
    attempts_gone) ON execution TO $1;
GRANT SELECT (execution_id, claim_id, generation, recorded_at) ON fenced_result TO $1;
GRANT SELECT (id, schedule_id, trigger, scheduled_at, shard_total, partition, epoch, held_behind,
    released_at, cancel_requested_at, cancel_applied_at) ON fire TO $1;
GRANT SELECT (key, expires_at, settled_at) ON idempotency TO $1;
GRANT SELECT (execution_id, generation) ON verdict TO $1;

-- A planned one waits: it is born without claim and result.
GRANT INSERT (id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
    trigger, job, queue, priority, content_type, traceparent, tracestate, timeout_ms, max_attempts,
    on_lost, scheduled_at, start_deadline_at, created_at, state, available_at, dispatch_no,
    dispatched_at, retry_first_ms, retry_cap_ms, start_deadline_ms, held) ON execution TO $1;
-- Alone in naming the term that planned it.
GRANT INSERT (id, schedule_id, schedule_version, trigger, scheduled_at, nominal_local, fold,
    shard_total, payload, content_type, traceparent, tracestate, partition, epoch, term_id,
    planned_at, held_behind) ON fire TO $1;
GRANT INSERT (execution_id, dispatch_no, queue, priority, created_at) ON outbox TO $1;
GRANT INSERT ON clock_anomaly, non_fire, term, ticker TO $1;

-- For its lock.
GRANT UPDATE (recorded_at) ON dead_letter TO $1;
-- For its lock: a worker may note the definition again right now.
GRANT UPDATE (noted_at) ON definition TO $1;
-- The sweeps: lost work, deadlines, dispatches, held and replaced fires.
GRANT UPDATE (state, reason, attempts_exhausted, cancel_requested_at, available_at, dispatch_no,
    dispatched_at, attempt_ended_at, left_by, error, escalated_at, ended_at, held, probe_no,
    probe_id, probe_session_id, probe_claimed_at, probe_deadline_at,
    attempts_gone) ON execution TO $1;
-- For its lock.
GRANT UPDATE (recorded_at) ON fenced_result TO $1;
-- Let go, or replaced.
GRANT UPDATE (released_at, cancel_requested_at, cancel_applied_at) ON fire TO $1;
-- For its lock.
GRANT UPDATE (acquired_at) ON idempotency TO $1;
GRANT UPDATE (epoch, term_id, holder, zone_version, renewed_at, expires_at) ON lease TO $1;
-- How far the keys of submissions are forgotten.
GRANT UPDATE (keys_marked_to, keys_forgotten_to, keys_marked_at) ON ledger TO $1;
GRANT UPDATE (until_at, count, recorded_at) ON non_fire TO $1;
-- The cursor, faults, schedules whose code is gone, the begin of the history that is kept.
GRANT UPDATE (cursor, next_at, ended, fault, history_from, deleted_at, retired) ON schedule TO $1;
-- Lost.
GRANT UPDATE (state, ended_at) ON session TO $1;
-- For its lock: whoever deletes a row locks it first.
GRANT UPDATE (created_at) ON submission_key TO $1;
GRANT UPDATE (ended_at) ON term TO $1;
GRANT UPDATE (map_version, bids, seen_at) ON ticker TO $1;

GRANT DELETE ON attempt, dead_letter, execution, fenced_result, fire, idempotency, non_fire,
    schedule, schedule_timing, session, session_definition, submission_key, term, ticker,
    verdict TO $1;
