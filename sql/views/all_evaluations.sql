-- one row per response of every evaluation that is kept of a run's models, whatever was asked of them.
-- `evaluation` names problems and settings: group by it, for rows of two evaluations are not to be averaged.
-- `is_default`: the run's own evaluation, else the one of most models and then of most problems.
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

named as (
    select * replace (coalesce(evaluation, 'unknown') as evaluation)
    from every
),

kept as (
    select
        run_id,
        evaluation,
        bool_or(is_own) as is_own,
        count(distinct model) as num_models,
        coalesce(max(num_problems), count(distinct prompt_index)) as num_problems
    from named
    group by run_id, evaluation
),

ranked as (
    select
        run_id,
        evaluation,
        num_problems,
        row_number() over (
            partition by run_id
            order by is_own desc, num_models desc, num_problems desc, evaluation asc
        ) as place
    from kept
)

select
    named.run_id,
    named.model,
    named.step,
    named.prompt_index,
    named.data_source,
    named.num_solutions,
    named.mode,
    named.sample_index,
    named.prompt,
    named.response,
    named.answer,
    named.verdict,
    named.score,
    named.response_tokens,
    named.finish_reason,
    named.value,
    named.verdict_strict,
    named.verdict_lenient,
    named.num_operands,
    named.ground_truth,
    named.evaluation,
    ranked.num_problems,
    ranked.place = 1 as is_default
from named
inner join ranked on named.run_id = ranked.run_id and named.evaluation = ranked.evaluation
