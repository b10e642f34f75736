-- ?1 row, ?2 lease end
UPDATE outbox SET leased_until = ?2 WHERE id = ?1
