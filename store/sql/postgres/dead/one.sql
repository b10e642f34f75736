-- $1 dead letter
SELECT id, job, queue, key, reason, detail, content_type, length(payload) AS size, execution_id,
       recorded_at, resolution, resolved_at, replayed_as, payload
FROM dead_letter
WHERE id = $1
