-- one row per run and answer, the most frequent: how often it was given, to how many problems, and its accuracy.
-- Ask it whether the model gives one answer to everything.
-- Example: countdown-train sql common_answers -p limit=3
-- $limit: int = 10 (rows per run at most)
select
    run_id,
    answer,
    count(*) as times,
    count(distinct prompt_index) as problems,
    count(*) filter (where verdict = 'correct') / count(*) as accuracy
from rollouts
where answer is not null
group by run_id, answer
qualify row_number() over (partition by run_id order by count(*) desc, answer asc) <= $limit
order by run_id asc, times desc, answer asc
