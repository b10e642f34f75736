-- ?1 execution, ?2 now
UPDATE execution SET dispatch_no = dispatch_no + 1, dispatched_at = ?2 WHERE id = ?1
