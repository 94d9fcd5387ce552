-- one row per run, evaluated model and range of solution counts: greedy accuracy beside the base model's.
-- Ask it whether training helped on hard problems (few solutions) or on easy ones only.
with greedy as (
    select
        run_id,
        model,
        verdict,
        case
            when num_solutions <= 2 then cast(num_solutions as varchar)
            when num_solutions <= 4 then '3-4'
            when num_solutions <= 8 then '5-8'
            else '9+'
        end as solutions,
        num_solutions
    from evaluations
    where mode = 'greedy'
),

shares as (
    select
        run_id,
        model,
        solutions,
        min(num_solutions) as fewest,
        count(*) as problems,
        count(*) filter (where verdict = 'correct') / count(*) as accuracy
    from greedy
    group by run_id, model, solutions
)

select
    trained.run_id,
    trained.model,
    trained.solutions,
    trained.problems,
    base.accuracy as base_accuracy,
    trained.accuracy,
    trained.accuracy - base.accuracy as gain
from shares as trained
left join shares as base
    on trained.run_id = base.run_id and trained.solutions = base.solutions and base.model = 'base'
where trained.model != 'base'
order by trained.run_id asc, trained.model asc, trained.fewest asc
