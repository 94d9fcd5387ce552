-- one row per run and training problem that was tried and never solved, most tried first.
-- Ask it which problems are out of reach, and how often a well-formed answer missed the target.
-- Example: countdown-train sql never_solved -p min_attempts=4
-- $min_attempts: int = 2 (leave out problems tried less often)
-- $limit: int = 20 (rows at most)
select
    run_id,
    prompt_index,
    count(*) as attempts,
    count(*) filter (where verdict = 'wrong_value') as near_misses,
    min(step) as first_step,
    max(step) as last_step,
    any_value(prompt) as prompt
from rollouts
group by run_id, prompt_index
having count(*) filter (where verdict = 'correct') = 0 and count(*) >= $min_attempts
order by attempts desc, run_id asc, prompt_index asc
limit $limit
