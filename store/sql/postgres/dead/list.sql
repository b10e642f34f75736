-- $1 reason, $2 job (null = any), $3 the resolved ones too, $4 limit
SELECT id, job, queue, key, reason, detail, content_type, length(payload) AS size, execution_id,
       recorded_at, resolution, resolved_at, replayed_as
FROM dead_letter
WHERE ($1::text IS NULL OR reason = $1)
  AND ($2::text IS NULL OR job = $2)
  AND ($3 OR resolved_at IS NULL)
ORDER BY recorded_at DESC, id DESC
LIMIT $4
