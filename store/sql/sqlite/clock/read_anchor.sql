SELECT boot_id, wall_ms, boot_ms, step_ms, step_boot_ms FROM clock_anchor WHERE id = 1
