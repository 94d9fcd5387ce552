-- one row per run, evaluation and model that is kept: number of problems, and greedy accuracy with its interval.
-- Ask it which evaluations there are; all other questions take the one with `is_default`, the run's own.
-- Do not compare accuracies of two evaluations: they are of different problems or settings.
-- Example: countdown-train sql kept_evaluations --run latest
with greedy as (
    select
        run_id,
        evaluation,
        is_default,
        model,
        any_value(step) as step,
        count(*) as problems,
        count(*) filter (where verdict = 'correct') / count(*) as accuracy
    from all_evaluations
    where mode = 'greedy'
    group by run_id, evaluation, is_default, model
)

select
    run_id,
    evaluation,
    is_default,
    model,
    step,
    problems,
    accuracy,
    wilson(accuracy, problems)[1] as accuracy_low,
    wilson(accuracy, problems)[2] as accuracy_high
from greedy
order by run_id asc, is_default desc, problems desc, evaluation asc, model != 'base', model asc
