-- ?1 execution, ?2 unclaimed dispatches
UPDATE execution SET lost_dispatches = lost_dispatches + 1, unclaimed_dispatches = ?2
WHERE id = ?1
