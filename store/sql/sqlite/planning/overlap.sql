-- ?1 schedule, ?2 fire
-- What an overlap policy looks at: whether the fire is there (a repeat), whether one is held, and the
-- newest fire that is unfinished and not held.
SELECT EXISTS (SELECT 1 FROM fire WHERE id = ?2) AS there,
    EXISTS (
        SELECT 1 FROM execution
        WHERE schedule_id = ?1 AND state IN ('pending', 'running', 'retrying', 'unknown')
            AND held) AS waits,
    (
        SELECT fire_id FROM execution
        WHERE schedule_id = ?1 AND state IN ('pending', 'running', 'retrying', 'unknown')
            AND NOT held
        ORDER BY id DESC LIMIT 1) AS unfinished
