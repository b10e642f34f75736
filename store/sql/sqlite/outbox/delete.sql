-- ?1 row
DELETE FROM outbox WHERE id = ?1
