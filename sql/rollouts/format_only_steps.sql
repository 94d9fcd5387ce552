-- one row per run and step whose score is (almost) all format credit: points, yet nothing solved.
-- Ask it whether a rising score is progress; such steps teach the tag, not the task.
-- Example: countdown-train sql format_only_steps -p max_accuracy=0.01
-- $max_accuracy: float = 0.0 (share of correct responses up to which a step counts)
select
    run_id,
    step,
    count(*) as rollouts,
    avg(score) as mean_score,
    count(*) filter (where verdict = 'correct') / count(*) as accuracy,
    count(*) filter (where verdict != 'correct' and score > 0) / count(*) as format_only_share,
    avg(response_tokens) as mean_response_tokens
from rollouts
group by run_id, step
having avg(score) > 0 and count(*) filter (where verdict = 'correct') / count(*) <= $max_accuracy
order by run_id asc, step asc
