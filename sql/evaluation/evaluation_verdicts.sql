-- one row per run, evaluated model and verdict, with its share of the responses that count.
-- Ask it how the base and the trained model fail.
-- Example: countdown-train sql evaluation_verdicts --run latest
with counted as (
    select
        run_id,
        model,
        verdict,
        count(*) as responses
    from evaluations
    where counts
    group by run_id, model, verdict
)

select
    run_id,
    model,
    verdict,
    responses,
    responses / sum(responses) over (partition by run_id, model) as share
from counted
order by run_id asc, model != 'base', model asc, share desc, verdict asc
