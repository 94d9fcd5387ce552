-- one row per run and step: one metric, and its mean over the steps around it.
-- Ask it how any logged metric changed in training; `metric_summary` lists their names.
-- Example: countdown-train sql metric_over_time -p metric=actor/entropy_loss --run latest
-- $metric: str = critic/kl (its name)
-- $before: int = 9 (steps before each one that its mean includes)
select
    run_id,
    step,
    value,
    avg(value) over (
        partition by run_id
        order by step range between $before preceding and current row
    ) as smoothed
from metrics
where metric = $metric
order by run_id asc, step asc
