-- ?1 reason, ?2 job (null = any), ?3 limit: the resolved ones too
SELECT id, job, queue, key, reason, detail, content_type, length(payload) AS size, execution_id,
    recorded_at, resolution, resolved_at, replayed_as
FROM dead_letter
WHERE (?1 IS NULL OR reason = ?1) AND (?2 IS NULL OR job = ?2)
ORDER BY recorded_at DESC, id DESC LIMIT ?3
