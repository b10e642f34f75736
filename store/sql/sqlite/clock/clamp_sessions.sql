-- ?1 latest lease end
UPDATE session SET expires_at = ?1 WHERE state = 'live' AND expires_at > ?1
