-- $1 key, $2 token, $3 generation, $4 state, $5 result
-- The owner's alone: a stale one finds another token. A lease that ran out without a takeover
-- is still the owner's; a repeat changes nothing, and counts.
UPDATE idempotency
SET state      = $4,
    result     = CASE WHEN state = 'in_progress' THEN $5 ELSE result END,
    settled_at = coalesce(settled_at, clock_timestamp())
WHERE key = $1 AND token = $2 AND generation = $3
  AND state IN ('in_progress', $4)
