-- one row per run, trained model and count of numbers in a puzzle: accuracy, and the base model's.
-- Ask it whether training helped with four numbers or with three only.
-- Example: countdown-train sql accuracy_by_operands --run latest
with shares as (
    select
        run_id,
        model,
        num_operands,
        count(*) as problems,
        avg(accuracy) as accuracy
    from problem_accuracy
    where is_default and num_operands is not null
    group by run_id, model, num_operands
)

select
    trained.run_id,
    trained.model,
    trained.num_operands,
    trained.problems,
    base.accuracy as base_accuracy,
    trained.accuracy,
    trained.accuracy - base.accuracy as gain
from shares as trained
left join shares as base
    on trained.run_id = base.run_id and trained.num_operands = base.num_operands and base.model = 'base'
where trained.model != 'base'
order by trained.run_id asc, trained.model asc, trained.num_operands asc
