-- ?1 execution, ?2 now
INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
SELECT id, dispatch_no, queue, priority, ?2 FROM execution WHERE id = ?1
