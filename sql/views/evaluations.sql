-- one row per response of one evaluation of each run, the run's own, for all models that answered it.
-- If a run has no own evaluation yet: the one with the most models, then with the most problems.
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
    num_problems,
    counts
from all_evaluations
where is_default
