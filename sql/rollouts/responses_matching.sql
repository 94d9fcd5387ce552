-- one row per rollout whose response matches a regular expression, the newest first.
-- Ask it for the moment at which the model begins to check itself, or for any phrase.
-- Example: countdown-train sql responses_matching -p pattern='(?i)let me check' -p limit=3
-- $pattern: str = (?i)wait|check|verify (a regular expression)
-- $limit: int = 5 (rows at most)
select
    run_id,
    step,
    prompt_index,
    verdict,
    score,
    regexp_extract(response, $pattern) as found,
    response
from rollouts
where regexp_matches(response, $pattern)
order by step desc, run_id asc, group_id asc, sample_index asc
limit $limit
