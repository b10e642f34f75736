-- The worker holds a session, claims, saves checkpoints and commits results; it registers the
-- schedules and definitions of its code. A handler that uses `commit_in` or idempotency keys does so with
-- the rights of the user of that connection: it needs these, too.

GRANT SELECT ON definition, execution, non_fire, queue, schedule, schedule_timing, session,
    session_definition, submission_key TO $1;
GRANT SELECT (execution_id, generation, claim_id, left_by, left_late) ON attempt TO $1;
GRANT SELECT (job, key) ON dead_letter TO $1;
GRANT SELECT (execution_id, claim_id) ON fenced_result TO $1;
GRANT SELECT (id, payload) ON fire TO $1;
GRANT SELECT (key, state, generation, token, expires_at, result, settled_at) ON idempotency TO $1;
GRANT SELECT (token, execution_id, became) ON verdict TO $1;

GRANT INSERT (job, key, queue, reason, detail, payload, recorded_at,
    content_type) ON dead_letter TO $1;
-- What a submitted message asks for: recorded by its first claim.
GRANT INSERT (id, fire_id, shard_index, shard_total, operation_id, trigger, job, queue, priority,
    key, payload, content_type, traceparent, tracestate, timeout_ms, max_attempts, on_lost,
    scheduled_at, start_deadline_at, created_at, state, available_at, defer_count, last_refusal,
    attempt, generation, claim_id, session_id, claimed_at, deadline_at, retry_first_ms,
    retry_cap_ms, policy_known, own_timeout) ON execution TO $1;
GRANT INSERT (key, state, generation, token, acquired_at, expires_at) ON idempotency TO $1;
GRANT INSERT (execution_id, dispatch_no, queue, priority, created_at) ON outbox TO $1;
GRANT INSERT (id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at, payload,
    content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms,
    origin, enabled, version, partition, cursor, history_from, created_at, description, code_hash,
    misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms,
    retry_cap_ms) ON schedule TO $1;
GRANT INSERT (id, name, host, pid, version, queues, jobs, max_concurrent, state, opened_at,
    renewed_at, expires_at, capabilities, probes) ON session TO $1;
GRANT INSERT ON attempt, definition, fenced_result, non_fire, queue, schedule_timing,
    session_definition, submission_key, verdict TO $1;

GRANT UPDATE (noted_at) ON definition TO $1;
-- Claim, checkpoint, result, and what a probe says. Alone in writing the claim and the output.
GRANT UPDATE (timeout_ms, max_attempts, on_lost, start_deadline_at, state, reason,
    attempts_exhausted, cancel_lost, available_at, dispatch_no, dispatched_at, defer_count,
    last_refusal, attempt, generation, claim_id, session_id, claimed_at, deadline_at, started_at,
    attempt_ended_at, left_by, result_generation, output, output_type, error, escalated_at,
    ended_at, retry_first_ms, retry_cap_ms, policy_known, lost_dispatches, unclaimed_dispatches,
    checkpoint, checkpoint_at, left_late, probe_no, probe_id, probe_session_id, probe_claimed_at,
    probe_deadline_at) ON execution TO $1;
GRANT UPDATE (state, generation, token, acquired_at, expires_at, result,
    settled_at) ON idempotency TO $1;
-- For a lock: the registration of a schedule must not race the growth of the partitions.
GRANT UPDATE (created_at) ON ledger TO $1;
-- A definition of code that has changed: also an edit moves the cursor.
GRANT UPDATE (job, queue, priority, kind, expr, zone, period_ms, anchor, at, payload, content_type,
    shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, enabled, version,
    cursor, next_at, ended, fault, description, code_hash, edited_at, misfire, catch_up_max,
    catch_up_window_ms, overlap, retry_first_ms, retry_cap_ms) ON schedule TO $1;
-- Renewed and closed by the worker alone; a ticker says that it is lost.
GRANT UPDATE (state, renewed_at, expires_at, ended_at, free_since, leaked,
    draining_since) ON session TO $1;
