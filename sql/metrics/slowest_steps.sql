-- one row per step, the slowest of each run: its seconds, how many times the median that is, and its longest phase.
-- Ask it whether a few slow steps cost much of the night, and which phase was slow in them.
-- Example: countdown-train sql slowest_steps -p limit=3
-- $limit: int = 5 (steps per run at most)
with whole as (
    select
        run_id,
        step,
        value as step_s,
        median(value) over (partition by run_id) as median_s
    from metrics
    where metric = 'timing_s/step'
),

phases as (
    select
        run_id,
        step,
        replace(arg_max(metric, value), 'timing_s/', '') as longest_phase,
        max(value) as longest_s
    from metrics
    where starts_with(metric, 'timing_s/') and metric != 'timing_s/step'
    group by run_id, step
)

select
    whole.run_id,
    whole.step,
    whole.step_s,
    whole.step_s / whole.median_s as times_median,
    phases.longest_phase,
    phases.longest_s
from whole
left join phases on whole.run_id = phases.run_id and whole.step = phases.step
qualify row_number() over (partition by whole.run_id order by whole.step_s desc, whole.step asc) <= $limit
order by whole.run_id asc, whole.step_s desc
