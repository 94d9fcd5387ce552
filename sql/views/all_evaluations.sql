-- one row per response of every evaluation that is kept of a run's models, whatever was asked of them.
-- `evaluation` names problems and settings: group by it, and do not average rows of two evaluations.
-- `is_default`: the run's own evaluation, else the one with the most models, then with the most problems.
-- `counts`: whether accuracy counts it: greedy responses, and samples only in an evaluation without those.
with every as (
    select
        *,
        true as is_own
    from evaluation_rows
    union all by name
    select
        *,
        false as is_own
    from other_evaluation_rows
),

kept as (
    select
        run_id,
        evaluation,
        bool_or(is_own) as is_own,
        bool_or(mode = 'greedy') as is_greedy,
        count(distinct model) as num_models,
        max(num_problems) as num_problems
    from every
    group by run_id, evaluation
),

ranked as (
    select
        run_id,
        evaluation,
        num_problems,
        is_greedy,
        row_number() over (
            partition by run_id
            order by is_own desc, num_models desc, num_problems desc, evaluation asc
        ) as place
    from kept
)

select
    every.run_id,
    every.model,
    every.step,
    every.prompt_index,
    every.data_source,
    every.num_solutions,
    every.mode,
    every.sample_index,
    every.prompt,
    every.response,
    every.answer,
    every.verdict,
    every.score,
    every.response_tokens,
    every.finish_reason,
    every.value,
    every.verdict_strict,
    every.verdict_lenient,
    every.num_operands,
    every.ground_truth,
    every.evaluation,
    ranked.num_problems,
    ranked.place = 1 as is_default,
    (every.mode = 'greedy') = ranked.is_greedy as counts
from every
inner join ranked on every.run_id = ranked.run_id and every.evaluation = ranked.evaluation
