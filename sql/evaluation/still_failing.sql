-- one row per test problem that the model evaluated last gets wrong: how often it was wrong in all evaluations.
-- Ask it what no night has taught yet; `asked` and `wrong` count the responses of all runs' trained models that count.
-- Example: countdown-train sql still_failing
-- $limit: int = 20 (rows at most)
with trained as (
    select
        evaluations.*,
        coalesce(runs.finished_at, runs.started_at) as evaluated_at
    from evaluations
    inner join runs on evaluations.run_id = runs.run_id
    where evaluations.counts and evaluations.model != 'base'
),

newest as (
    select
        run_id,
        model
    from trained
    order by evaluated_at desc, step desc, run_id asc
    limit 1
),

counts as (
    select
        prompt,
        ground_truth,
        count(*) as asked,
        count(*) filter (where verdict != 'correct') as wrong
    from trained
    group by prompt, ground_truth
)

select
    trained.run_id,
    trained.model,
    trained.prompt_index,
    counts.wrong,
    counts.asked,
    trained.verdict,
    trained.answer,
    trained.num_solutions,
    trained.prompt
from trained
inner join newest on trained.run_id = newest.run_id and trained.model = newest.model
inner join counts on trained.prompt = counts.prompt and trained.ground_truth = counts.ground_truth
where trained.verdict != 'correct' and coalesce(trained.sample_index, 0) = 0
order by counts.wrong / counts.asked desc, counts.asked desc, trained.prompt_index asc
limit $limit
