-- $1 execution ids, $2 claim_ids: what stands in the way of each ask, in their order; or that
-- it is claimed already, by an ask whose answer was lost. The payload comes with that only.
SELECT execution.id, execution.state, execution.dispatch_no,
       execution.dispatched_at IS NOT NULL AS dispatched,
       execution.held,
       execution.cancel_requested_at IS NOT NULL AS cancel_requested,
       execution.available_at > clock_timestamp() AS ahead,
       execution.start_deadline_at <= clock_timestamp() AS past_start_deadline,
       execution.attempt >= execution.max_attempts AS budget_used_up,
       execution.state = 'running' AND execution.claim_id = ask.claim_id AS own,
       coalesce(execution.state = 'unknown' AND execution.probe_id = ask.claim_id, false)
           AS own_probe,
       execution.state = 'unknown' AND execution.escalated_at IS NULL
           AND (
               execution.probe_id IS NULL OR execution.probe_deadline_at <= clock_timestamp()
           ) AS probe_due,
       execution.fire_id, execution.operation_id, execution.job, execution.queue,
       execution.claim_id, execution.generation, execution.attempt, execution.max_attempts,
       execution.shard_index, execution.shard_total, execution.trigger,
       execution.schedule_version, execution.scheduled_at, execution.deadline_at,
       execution.timeout_ms, execution.retry_first_ms, execution.retry_cap_ms,
       execution.policy_known,
       (extract(epoch FROM execution.claimed_at - execution.dispatched_at) * 1000000)::bigint
           AS waited_us,
       execution.content_type, execution.traceparent,
       execution.tracestate,
       CASE WHEN execution.state = 'running' AND execution.claim_id = ask.claim_id
            THEN execution.checkpoint END AS checkpoint,
       CASE WHEN execution.state = 'running' AND execution.claim_id = ask.claim_id
            THEN coalesce(execution.payload, fire.payload) END AS payload
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS ask (execution_id, claim_id, ord)
LEFT JOIN execution ON execution.id = ask.execution_id
LEFT JOIN fire ON fire.id = execution.fire_id AND execution.payload IS NULL
    AND execution.state = 'running' AND execution.claim_id = ask.claim_id
ORDER BY ask.ord
