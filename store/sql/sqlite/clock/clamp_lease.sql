-- ?1 latest lease end
UPDATE lease SET expires_at = min(expires_at, ?1)
