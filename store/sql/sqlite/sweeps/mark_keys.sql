-- ?1 now, ?2 now less the retention, ?3 now less the shortest retention there is
-- A claim judges a message by the mark (submitted.rs): it moves first and never back, and only
-- what lay before it a minute ago is forgotten, as on Postgres, where claims do not take turns.
-- A mark younger than the shortest retention, or set in the future, is of a clock that was wrong: it
-- comes back, and its minute begins again.
UPDATE ledger
SET keys_forgotten_to = CASE WHEN keys_marked_at <= ?1
        THEN keys_marked_to ELSE keys_forgotten_to END,
    keys_marked_to    = max(min(keys_marked_to, ?3), ?2),
    keys_marked_at    = ?1
WHERE keys_marked_at <= ?1 - 60000 OR keys_marked_at > ?1
