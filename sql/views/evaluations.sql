-- one row per response of the evaluation after training, of the base model and of the trained one.
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
    ground_truth
from evaluation_rows
