-- ?1 fire. Those of its executions with attempts in their history, and how many of these there are.
SELECT id, attempts_gone, generation - 1 - attempts_gone AS attempts FROM execution
WHERE fire_id = ?1 AND generation - 1 > attempts_gone
ORDER BY id
