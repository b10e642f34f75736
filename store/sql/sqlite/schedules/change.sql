-- Parameters as bound in schedules.rs: ?1 id, ?2 version and ?3 cursor when it was read,
-- ?4 enabled, ?5 … ?22 the definition, ?23 author (null, 'operator', 'code'), ?24 its hash,
-- ?25 the cursor if it moves, ?26 now, ?27 … ?32 the rest of the definition
UPDATE schedule SET version = version + 1, enabled = ?4, job = ?5, queue = ?6, priority = ?7,
    kind = ?8, expr = ?9, zone = ?10, period_ms = ?11, anchor = ?12, at = ?13, payload = ?14,
    content_type = ?15, shard_total = ?16, timeout_ms = ?17, max_attempts = ?18,
    start_deadline_ms = ?19, on_lost = ?20, grace_ms = ?21, description = ?22,
    misfire = ?27, catch_up_max = ?28, catch_up_window_ms = ?29, overlap = ?30,
    retry_first_ms = ?31, retry_cap_ms = ?32,
    code_hash = CASE WHEN ?23 = 'code' THEN ?24 ELSE code_hash END,
    edited_at = CASE ?23 WHEN 'operator' THEN ?26 WHEN 'code' THEN NULL ELSE edited_at END,
    cursor = coalesce(?25, cursor),
    next_at = CASE WHEN ?25 IS NULL THEN next_at END,
    ended = ?25 IS NULL AND ended,
    fault = CASE WHEN ?25 IS NULL THEN fault END
WHERE id = ?1 AND version = ?2 AND cursor = ?3 AND deleted_at IS NULL
RETURNING version
