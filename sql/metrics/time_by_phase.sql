-- one row per run and phase of a training step: its seconds over the whole run, the longest first.
-- Ask it where the training time goes.
-- Example: countdown-train sql time_by_phase --run latest
with phases as (
    select
        run_id,
        value,
        replace(metric, 'timing_s/', '') as phase
    from metrics
    where starts_with(metric, 'timing_s/') and metric != 'timing_s/step'
)

select
    run_id,
    phase,
    count(*) as steps,
    sum(value) as total_s,
    avg(value) as mean_s,
    sum(value) / sum(sum(value)) over (partition by run_id) as share
from phases
group by run_id, phase
order by run_id asc, total_s desc
