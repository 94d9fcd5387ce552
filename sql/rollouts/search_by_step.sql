-- one row per run and some steps: how long responses search, how often they say that they found it.
-- Ask it what changed in behaviour: longer search shows in attempts, better judgement in accuracy_of_hits.
-- Example: countdown-train sql search_by_step -p steps_per_row=5 --run latest
-- $attempt: str = \s:\s (a regular expression of an attempt: as the home-made model writes it)
-- $hit: str = \byes\b (a regular expression of what a response says when it has found an answer)
-- $steps_per_row: int = 1 (steps summed up in one row)
with searched as (
    select
        run_id,
        verdict = 'correct' as is_correct,
        response_tokens,
        len(regexp_extract_all(response, $attempt)) as attempts,
        regexp_matches(response, $hit) as is_hit,
        cast((step - 1) // $steps_per_row * $steps_per_row + 1 as bigint) as step
    from rollouts
)

select
    run_id,
    step,
    count(*) as rollouts,
    avg(response_tokens) as tokens,
    avg(attempts) as attempts,
    avg(cast(is_hit as integer)) as hit_share,
    avg(cast(is_correct as integer)) filter (where is_hit) as accuracy_of_hits,
    avg(cast(is_correct as integer)) as accuracy
from searched
group by run_id, step
having sum(attempts) > 0
order by run_id asc, step asc
