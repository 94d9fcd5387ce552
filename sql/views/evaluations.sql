-- one row per response of one evaluation of each run, of all models that were asked it: the run's own.
-- Where a run's own settings asked nothing yet: the one of most models, then of most problems.
-- `evaluation` and `num_problems` say which; `all_evaluations` holds the others too.
select
    run_id,
    model,
    step,
    prompt_index,
    data_source,
    num_solutions,
    mode,
    sample_index,
    prompt,
    response,
    answer,
    verdict,
    score,
    response_tokens,
    finish_reason,
    value,
    verdict_strict,
    verdict_lenient,
    num_operands,
    ground_truth,
    evaluation,
    num_problems
from all_evaluations
where is_default
