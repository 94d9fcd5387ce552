-- one row per run, evaluated model and k: the chance that one of k samples is correct, unbiased.
-- Ask it what sampling more often would gain, and whether training narrowed what the model can find.
-- Example: countdown-train sql pass_at_k --run latest
with problems as (
    select
        run_id,
        model,
        prompt_index,
        count(*) as samples,
        count(*) filter (where verdict = 'correct') as solved
    from evaluations
    where mode = 'sampled'
    group by run_id, model, prompt_index
),

-- 1 - C(samples - solved, k) / C(samples, k): a further factor for each further draw
chances as (
    select
        problems.run_id,
        problems.model,
        problems.prompt_index,
        problems.samples,
        draws.draw + 1 as k,
        1 - product(greatest(problems.samples - problems.solved - draws.draw, 0) / (problems.samples - draws.draw))
            over (
                partition by problems.run_id, problems.model, problems.prompt_index
                order by draws.draw
            ) as chance
    from problems
    cross join unnest(range(problems.samples)) as draws (draw)
),

averages as (
    select
        run_id,
        model,
        k,
        count(*) as problems,
        avg(chance) as pass_at_k,
        effective_problems(avg(chance), var_pop(chance), count(*), min(samples)) as effective
    from chances
    group by run_id, model, k
)

select
    run_id,
    model,
    k,
    problems,
    pass_at_k,
    wilson(pass_at_k, effective)[1] as low,
    wilson(pass_at_k, effective)[2] as high
from averages
order by run_id asc, model != 'base', model asc, k asc
