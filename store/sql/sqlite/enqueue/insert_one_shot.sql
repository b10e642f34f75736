-- ?1 execution, ?2 fire, ?3 trigger, ?4 job, ?5 queue, ?6 priority, ?7 key, ?8 payload,
-- ?9 content_type, ?10 traceparent, ?11 tracestate, ?12 timeout_ms, ?13 max_attempts, ?14 on_lost,
-- ?15 scheduled_at, ?16 start_deadline_at, ?17 now, ?18 available_at, ?19 last_refusal,
-- ?20 and ?21 first delay and cap of retries, ?22 policy_known, ?23 own_timeout
INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, trigger, job, queue,
    priority, key, payload, content_type, traceparent, tracestate, timeout_ms, max_attempts,
    on_lost, scheduled_at, start_deadline_at, created_at, state, available_at, last_refusal,
    defer_count, retry_first_ms, retry_cap_ms, policy_known, own_timeout)
VALUES (?1, ?2, 0, 1, ?1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
    'pending', ?18, ?19, ?19 IS NOT NULL, ?20, ?21, ?22, ?23)
