-- one row per run, trained model and data source: accuracy, and the base model's.
-- Ask it which tasks of a mixture training helped with.
-- Example: countdown-train sql accuracy_by_data_source --run latest
with shares as (
    select
        run_id,
        model,
        data_source,
        count(*) as problems,
        avg(accuracy) as accuracy
    from problem_accuracy
    where is_default
    group by run_id, model, data_source
)

select
    trained.run_id,
    trained.model,
    trained.data_source,
    trained.problems,
    base.accuracy as base_accuracy,
    trained.accuracy,
    trained.accuracy - base.accuracy as gain
from shares as trained
left join shares as base
    on trained.run_id = base.run_id and trained.data_source = base.data_source and base.model = 'base'
where trained.model != 'base'
order by trained.run_id asc, trained.model asc, trained.data_source asc
