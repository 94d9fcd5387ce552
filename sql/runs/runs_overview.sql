-- one row per run, the newest first: status, steps, accuracy before and after, minutes.
-- Ask it which runs there are and which was worth its time; of a run still going it tells the latest test.
-- Both accuracies are of the evaluation, or both of the tests in training, which ask fewer problems.
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
),

known as (
    select
        *,
        coalesce(accuracy_before, accuracy_after) is not null as is_evaluated
    from runs
)

select
    runs.run_id,
    runs.preset,
    runs.status,
    greatest(runs.steps, tests.last_step) as steps,
    if(runs.is_evaluated, runs.accuracy_before, tests.first_accuracy) as accuracy_before,
    if(runs.is_evaluated, runs.accuracy_after, tests.last_accuracy) as accuracy_after,
    date_diff('second', runs.started_at, coalesce(runs.finished_at, tests.logged_at)) / 60 as minutes,
    runs.started_at,
    runs.reason
from known as runs
left join tests on runs.run_id = tests.run_id
order by runs.started_at desc nulls last, runs.run_id asc
