-- ?1 rowid of a schedule, ?2 why it cannot be read
UPDATE schedule SET fault = ?2 WHERE rowid = ?1 AND fault IS NULL
