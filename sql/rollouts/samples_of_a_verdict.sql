-- one row per rollout with one verdict, a random few (the same few for the same seed).
-- Ask it what a `bad_syntax`, a `no_answer` or a `correct` looks like.
-- Example: countdown-train sql samples_of_a_verdict -p verdict=bad_syntax -p limit=3
-- $verdict: str = correct (correct, wrong_value, wrong_numbers, bad_syntax, no_answer, ...)
-- $from_step: int = 1 (leave out earlier steps)
-- $seed: int = 0 (another one draws others)
-- $limit: int = 5 (rows at most)
select
    run_id,
    step,
    prompt_index,
    verdict,
    score,
    answer,
    response,
    prompt
from rollouts
where verdict = $verdict and step >= $from_step
order by hash(run_id, step, group_id, sample_index, $seed)
limit $limit
