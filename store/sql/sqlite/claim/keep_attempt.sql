-- ?1 execution
-- The attempt that this claim supersedes goes to the history. What gave its charge back keeps
-- the number it had.
INSERT INTO attempt (execution_id, generation, attempt, claim_id, session_id, claimed_at,
    started_at, ended_at, reason, error, left_by, left_late)
SELECT id, generation, attempt + (coalesce(reason, '') IN ('snooze', 'release')), claim_id,
    session_id, claimed_at, started_at, attempt_ended_at, reason, error, left_by, left_late
FROM execution WHERE id = ?1 AND generation > 0
