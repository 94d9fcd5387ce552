-- one row per response, the longest first.
-- Ask it what fills the token limit: long searches, or loops.
-- Example: countdown-train sql longest_responses -p limit=3
-- $limit: int = 20 (rows at most)
select
    run_id,
    step,
    prompt_index,
    response_tokens,
    finish_reason,
    verdict,
    score,
    response
from rollouts
order by response_tokens desc, run_id asc, step asc, prompt_index asc, sample_index asc
limit $limit
