-- one row per response to one training problem, oldest first.
-- Ask it how the model's way of solving the same puzzle changed while it learned.
-- Example: countdown-train sql same_problem_over_time --run latest
-- $problem: int = -1 (row of the train split; -1 takes each run's most tried problem)
with chosen as (
    select
        run_id,
        if($problem < 0, prompt_index, $problem) as prompt_index
    from rollouts
    group by run_id, prompt_index
    qualify row_number() over (partition by run_id order by count(*) desc, prompt_index asc) = 1
)

select
    rollouts.run_id,
    rollouts.step,
    rollouts.prompt_index,
    rollouts.sample_index,
    rollouts.verdict,
    rollouts.answer,
    rollouts.response_tokens,
    rollouts.response
from rollouts
inner join chosen
    on rollouts.run_id = chosen.run_id and rollouts.prompt_index = chosen.prompt_index
order by rollouts.run_id asc, rollouts.step asc, rollouts.sample_index asc
