-- one row per rollout with one verdict, a random few (the same few for the same seed).
-- Ask it what a `bad_syntax`, a `no_answer` or a `correct` looks like; by default the mistake made most often.
-- Example: countdown-train sql samples_of_a_verdict -p verdict=bad_syntax -p limit=3
-- $verdict: str = most_frequent_mistake (or correct, wrong_value, wrong_numbers, bad_syntax, no_answer, ...)
-- $from_step: int = 1 (leave out earlier steps)
-- $seed: int = 0 (another one draws others)
-- $limit: int = 5 (rows at most)
with mistakes as (
    select
        verdict,
        count(*) as rollouts
    from rollouts
    where verdict <> 'correct' and step >= $from_step
    group by verdict
),

asked as (
    select coalesce(
        nullif($verdict, 'most_frequent_mistake'),
        (select arg_max(verdict, (rollouts, verdict)) from mistakes)
    ) as verdict
)

select
    run_id,
    step,
    prompt_index,
    verdict,
    score,
    answer,
    response,
    prompt,
    truth
from rollouts
where verdict = (select asked.verdict from asked) and step >= $from_step
order by hash(run_id, step, group_id, sample_index, $seed)
limit $limit
