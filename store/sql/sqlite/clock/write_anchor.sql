-- ?1 boot_id, ?2 wall_ms, ?3 boot_ms, ?4 step_ms, ?5 step_boot_ms
INSERT INTO clock_anchor (id, boot_id, wall_ms, boot_ms, step_ms, step_boot_ms)
VALUES (1, ?1, ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO UPDATE SET
    boot_id = excluded.boot_id, wall_ms = excluded.wall_ms, boot_ms = excluded.boot_ms,
    step_ms = excluded.step_ms, step_boot_ms = excluded.step_boot_ms
