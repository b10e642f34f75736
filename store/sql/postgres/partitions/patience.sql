-- $1 longest statement of this transaction (ms, text)
SELECT set_config('statement_timeout', $1, true)
