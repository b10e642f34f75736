-- ?1 row
UPDATE outbox SET leased_until = NULL WHERE id = ?1
