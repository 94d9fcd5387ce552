-- one row per run: the checkpoint on disk with the highest test accuracy; among equals, the one of the pointer `best`.
-- Ask it which folder to load; pruning may have deleted a better one, which `tested_best` shows.
-- Example: countdown-train sql best_checkpoint --run latest
with tests as (
    select
        run_id,
        max(value) as tested_best,
        arg_min(value, step) as accuracy_at_start
    from metrics
    where metric = 'val/accuracy'
    group by run_id
)

select
    checkpoints.run_id,
    checkpoints.step,
    checkpoints.accuracy,
    tests.accuracy_at_start,
    tests.tested_best,
    checkpoints.is_latest,
    checkpoints.total_bytes,
    checkpoints.folder
from checkpoints
left join tests on checkpoints.run_id = tests.run_id
where checkpoints.accuracy is not null
qualify
    row_number() over (
        partition by checkpoints.run_id
        -- of equal accuracy, the one that the pointer `best` names
        order by checkpoints.accuracy desc, checkpoints.is_best desc, checkpoints.step asc
    ) = 1
order by checkpoints.run_id asc
