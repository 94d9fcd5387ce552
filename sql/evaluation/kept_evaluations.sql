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
),

margins as (
    select
        *,
        (accuracy + 1.959964 ** 2 / (2 * problems)) / (1 + 1.959964 ** 2 / problems) as centre,
        1.959964 * sqrt(accuracy * (1 - accuracy) / problems + 1.959964 ** 2 / (4 * problems ** 2))
        / (1 + 1.959964 ** 2 / problems) as margin
    from greedy
)

select
    run_id,
    evaluation,
    is_default,
    model,
    step,
    problems,
    accuracy,
    centre - margin as accuracy_low,
    centre + margin as accuracy_high
from margins
order by run_id asc, is_default desc, problems desc, evaluation asc, model != 'base', model asc
