-- one row per run and step: problems tried, and solved, for the first time in the run.
-- Ask it whether the model still solves new problems, or only the same ones again.
-- Example: countdown-train sql first_solved --run latest
with firsts as (
    select
        run_id,
        prompt_index,
        min(step) as tried_at,
        min(step) filter (where verdict = 'correct') as solved_at
    from rollouts
    group by run_id, prompt_index
),

tried as (
    select
        run_id,
        tried_at as step,
        count(*) as newly_tried
    from firsts
    group by run_id, tried_at
),

solved as (
    select
        run_id,
        solved_at as step,
        count(*) as newly_solved
    from firsts
    where solved_at is not null
    group by run_id, solved_at
)

select
    coalesce(tried.run_id, solved.run_id) as run_id,
    coalesce(tried.step, solved.step) as step,
    coalesce(tried.newly_tried, 0) as newly_tried,
    coalesce(solved.newly_solved, 0) as newly_solved
from tried
full join solved on tried.run_id = solved.run_id and tried.step = solved.step
order by run_id asc, step asc
