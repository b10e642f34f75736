-- For this transaction only: one row that waits for somebody must not hold up the others.
SELECT set_config('lock_timeout', '250ms', true)
