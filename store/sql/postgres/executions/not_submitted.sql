-- $1 jobs, $2 keys, $3 claim_ids: the execution behind each key, in their order.
SELECT submission_key.execution_id,
       execution.state,
       execution.generation,
       execution.scheduled_at,
       execution.deadline_at,
       execution.state = 'running' AND execution.claim_id = ask.claim_id
           AND execution.generation = 1 AS own
FROM unnest($1::text[], $2::text[], $3::uuid[]) WITH ORDINALITY AS ask (job, key, claim_id, ord)
LEFT JOIN submission_key ON submission_key.job = ask.job AND submission_key.key = ask.key
LEFT JOIN execution ON execution.id = submission_key.execution_id
ORDER BY ask.ord
