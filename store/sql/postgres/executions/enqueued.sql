-- $1 ids, $2 jobs, $3 keys: which execution stands for each, in their order; null = none yet.
SELECT coalesce(execution.id, submission_key.execution_id) AS execution_id
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS new (id, job, key, ord)
LEFT JOIN submission_key ON submission_key.job = new.job AND submission_key.key = new.key
LEFT JOIN execution ON execution.id = new.id
ORDER BY new.ord
