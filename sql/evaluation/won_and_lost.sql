-- one row per run, evaluated model and test problem that only one of base and trained model solved.
-- Ask it what training taught, and what it made the model forget.
-- Example: countdown-train sql won_and_lost --run latest
-- $change: won|lost|both = both
-- $limit: int = 20 (rows at most)
with greedy as (
    select
        run_id,
        model,
        prompt_index,
        num_solutions,
        verdict,
        answer,
        prompt
    from evaluations
    where mode = 'greedy'
),

changes as (
    select
        trained.run_id,
        trained.model,
        trained.prompt_index,
        if(trained.verdict = 'correct', 'won', 'lost') as change,
        trained.num_solutions,
        base.verdict as base_verdict,
        base.answer as base_answer,
        trained.verdict,
        trained.answer,
        trained.prompt
    from greedy as trained
    inner join greedy as base
        on trained.run_id = base.run_id and trained.prompt_index = base.prompt_index and base.model = 'base'
    where trained.model != 'base' and (trained.verdict = 'correct') != (base.verdict = 'correct')
)

select *
from changes
where $change in ('both', change)
order by change desc, run_id asc, model asc, prompt_index asc
limit $limit
