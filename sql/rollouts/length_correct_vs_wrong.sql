-- one row per run and span of steps: response lengths in tokens, of solved and of failed problems.
-- Ask it whether the model thinks longer or shorter, and whether failures are cut off or give up early.
-- Example: countdown-train sql length_correct_vs_wrong -p steps_per_row=5
-- $steps_per_row: int = 10 (steps summed up in one row)
select
    run_id,
    cast((step - 1) // $steps_per_row * $steps_per_row + 1 as bigint) as from_step,
    count(*) as rollouts,
    avg(response_tokens) filter (where verdict = 'correct') as correct_tokens,
    avg(response_tokens) filter (where verdict != 'correct') as wrong_tokens,
    count(*) filter (where finish_reason = 'length') / count(*) as cut_share,
    count(*) filter (where verdict != 'correct' and finish_reason = 'length')
    / nullif(count(*) filter (where verdict != 'correct'), 0) as wrong_cut_share
from rollouts
group by run_id, from_step
order by run_id asc, from_step asc
