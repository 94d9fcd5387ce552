-- one row per run, evaluated model and range of solution counts: accuracy, and the base model's.
-- Ask it whether training helped on hard problems (few solutions) or on easy ones only.
-- Ranges double (1, 2-3, 4-7, ...), so they are the same for every data set.
-- Example: countdown-train sql accuracy_by_num_solutions --run latest
with answered as (
    select
        run_id,
        model,
        accuracy,
        if(num_solutions = 0, 0, 1 << (length(bin(num_solutions)) - 1)) as fewest
    from problem_accuracy
    where is_default
),

shares as (
    select
        run_id,
        model,
        fewest,
        case
            when fewest = 0 then 'unknown'
            when fewest = 1 then '1'
            else concat(fewest, '-', 2 * fewest - 1)
        end as solutions,
        count(*) as problems,
        avg(accuracy) as accuracy
    from answered
    group by run_id, model, fewest
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
