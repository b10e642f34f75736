-- ?1 now, ?2 now less the retention
-- A claim judges a message by the mark (submitted.rs): it moves first and never back, and only
-- what lay before it a minute ago is forgotten, as on Postgres, where claims do not take turns.
UPDATE ledger
SET keys_forgotten_to = keys_marked_to,
    keys_marked_to    = max(keys_marked_to, ?2),
    keys_marked_at    = ?1
WHERE keys_marked_at <= ?1 - 60000
