-- one row per run and some steps whose responses the env answered: how often, and whether it helped.
-- Ask it whether the model uses what the env offers (env.max_turns), and is right more often then.
-- Example: countdown-train sql turns_by_step
-- $steps_per_row: int = 1 (steps summed up in one row)
with responses as (
    select
        run_id,
        cast((step - 1) // $steps_per_row * $steps_per_row + 1 as bigint) as step,
        verdict = 'correct' as is_correct,
        len(turns) // 2 as answers,
        list_sum([turn.tokens for turn in turns if turn.author = 'env']) as env_tokens
    from rollouts
)

select
    run_id,
    step,
    count(*) as rollouts,
    avg(coalesce(answers, 0)) as answers_per_rollout,
    max(coalesce(answers, 0)) as most_answers,
    sum(coalesce(env_tokens, 0)) as env_tokens,
    avg(cast(is_correct as int)) filter (where answers > 0) as accuracy_answered,
    avg(cast(is_correct as int)) filter (where coalesce(answers, 0) = 0) as accuracy_unanswered
from responses
group by run_id, step
having max(answers) > 0
order by run_id asc, step asc
