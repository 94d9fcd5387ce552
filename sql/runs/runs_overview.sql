-- one row per run, the newest first: status, steps, accuracy before and after, minutes.
-- Ask it which runs there are and which was worth its time; of a run still going it tells the latest test.
-- Example: countdown-train sql runs_overview --run latest
with tests as (
    select
        run_id,
        max(step) as last_step,
        arg_min(value, step) filter (where metric = 'val/accuracy') as first_accuracy,
        arg_max(value, step) filter (where metric = 'val/accuracy') as last_accuracy,
        max(logged_at) as logged_at
    from metrics
    group by run_id
)

select
    runs.run_id,
    runs.preset,
    runs.status,
    greatest(runs.steps, tests.last_step) as steps,
    coalesce(runs.accuracy_before, tests.first_accuracy) as accuracy_before,
    coalesce(runs.accuracy_after, tests.last_accuracy) as accuracy_after,
    date_diff('second', runs.started_at, coalesce(runs.finished_at, tests.logged_at)) / 60 as minutes,
    runs.started_at,
    runs.reason
from runs
left join tests on runs.run_id = tests.run_id
order by runs.started_at desc nulls last, runs.run_id asc
