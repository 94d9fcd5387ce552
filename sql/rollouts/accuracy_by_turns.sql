-- one row per run and number of the model's turns, if the env answered any: how many responses took so
-- many, which share of them was correct, and their mean length in tokens.
-- Ask it whether responses that ask more are right more often (env.max_turns), or only longer.
-- Example: countdown-train sql accuracy_by_turns --run latest
-- $from_step: int = 1 (steps before it are left out)
with responses as (
    select
        run_id,
        verdict = 'correct' as is_correct,
        response_tokens,
        coalesce(len(turns) // 2 + 1, 1) as turns
    from rollouts
    where step >= $from_step
)

select
    run_id,
    turns,
    count(*) as rollouts,
    count(*) / sum(count(*)) over (partition by run_id) as share,
    avg(cast(is_correct as int)) as accuracy,
    avg(response_tokens) as tokens
from responses
group by run_id, turns
qualify max(turns) over (partition by run_id) > 1
order by run_id asc, turns asc
