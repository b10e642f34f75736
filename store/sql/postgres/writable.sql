-- In place of a ping, so that it costs no extra round trip.
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'
