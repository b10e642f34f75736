-- Parameters as bound in schedules.rs; ?21 is the number that picks the partition, ?22 now,
-- ?23 description, ?24 hash of the definition, ?25 … ?30 the rest of it. The partition is the id's, by the count in force.
INSERT INTO schedule (id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at,
    payload, content_type, shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost,
    grace_ms, origin, enabled, version, partition, cursor, history_from, created_at, description,
    code_hash, misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms, retry_cap_ms)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    1, 1, ?21 % partition_count, ?22, ?22, ?22, ?23, ?24, ?25, ?26, ?27, ?28,
    ?29, ?30
FROM ledger
