-- one row per run, evaluated model and test problem that only one of base and trained model solved,
-- or solved more often, with the verdicts of their first answers.
-- Ask it what training taught, and what it made the model forget.
-- Example: countdown-train sql won_and_lost --run latest
-- $change: won|lost|both = both
-- $limit: int = 20 (rows at most)
with answered as (
    select
        first_answers.*,
        problem_accuracy.accuracy
    from evaluations as first_answers
    inner join problem_accuracy
        on
            first_answers.run_id = problem_accuracy.run_id
            and first_answers.evaluation = problem_accuracy.evaluation
            and first_answers.model = problem_accuracy.model
            and first_answers.prompt_index = problem_accuracy.prompt_index
    where first_answers.counts and coalesce(first_answers.sample_index, 0) = 0
),

changes as (
    select
        trained.run_id,
        trained.model,
        trained.prompt_index,
        if(trained.accuracy > base.accuracy, 'won', 'lost') as change,
        trained.num_solutions,
        base.verdict as base_verdict,
        base.answer as base_answer,
        trained.verdict,
        trained.answer,
        trained.prompt
    from answered as trained
    inner join answered as base
        on trained.run_id = base.run_id and trained.prompt_index = base.prompt_index and base.model = 'base'
    where trained.model != 'base' and trained.accuracy != base.accuracy
)

select *
from changes
where $change in ('both', change)
order by change desc, run_id asc, model asc, prompt_index asc
limit $limit
