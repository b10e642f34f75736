-- ?1 outbox row
DELETE FROM outbox WHERE id = ?1 RETURNING execution_id, dispatch_no
