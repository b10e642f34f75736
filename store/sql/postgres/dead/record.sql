INSERT INTO dead_letter (job, key, queue, reason, detail, payload, content_type, recorded_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp())
ON CONFLICT (job, key) DO NOTHING
