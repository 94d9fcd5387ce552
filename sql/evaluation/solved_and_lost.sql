-- one row per run and held-out problem kept at each test: when it was first solved, and lost again.
-- Ask it what the model learned in training and then forgot; the problems lost most often come first.
-- Example: countdown-train sql solved_and_lost --run latest -p change=lost
-- $change: any|lost = any (lost: at least once)
-- $limit: int = 20 (rows at most)
with tests as (
    select
        run_id,
        prompt_index,
        step,
        num_solutions,
        verdict,
        prompt,
        verdict = 'correct' as is_solved,
        lag(verdict = 'correct', 1, false) over (
            partition by run_id, prompt_index
            order by step
        ) as was_solved
    from held_out
)

select
    run_id,
    prompt_index,
    arg_max(num_solutions, step) as num_solutions,
    count(*) as tests,
    count(*) filter (where is_solved) as times_solved,
    min(step) filter (where is_solved) as first_solved_at,
    count(*) filter (where was_solved and not is_solved) as times_lost,
    max(step) filter (where was_solved and not is_solved) as last_lost_at,
    arg_max(verdict, step) as last_verdict,
    arg_max(prompt, step) as prompt
from tests
group by run_id, prompt_index
having $change = 'any' or count(*) filter (where was_solved and not is_solved) > 0
order by times_lost desc, first_solved_at asc nulls last, run_id asc, prompt_index asc
limit $limit
