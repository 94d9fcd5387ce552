-- one row per checkpoint on disk, of all runs: its step, test accuracy, size, and what points to it.
-- Ask it what could be resumed, served or deleted.
-- Example: countdown-train sql checkpoints_on_disk
select
    run_id,
    step,
    accuracy,
    total_bytes,
    is_latest,
    is_best,
    folder
from checkpoints
order by run_id asc, step asc
