-- $1 execution
SELECT state FROM execution WHERE id = $1
