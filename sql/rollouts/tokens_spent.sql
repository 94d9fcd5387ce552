-- one row per run and epoch: tokens read and written, and tokens written per correct response.
-- Ask it where the tokens went, and whether answers become cheaper.
-- Example: countdown-train sql tokens_spent
select
    run_id,
    epoch,
    count(*) as rollouts,
    sum(prompt_tokens) as prompt_tokens,
    sum(response_tokens) as response_tokens,
    sum(response_tokens) / nullif(count(*) filter (where verdict = 'correct'), 0) as tokens_per_correct
from rollouts
group by run_id, epoch
order by run_id asc, epoch asc
