-- one row per test during training and problem kept of it: the greedy answer, or the first sample
-- (the first problems only).
select
    run_id,
    model,
    step,
    prompt_index,
    data_source,
    num_solutions,
    prompt,
    response,
    answer,
    verdict,
    score,
    response_tokens,
    finish_reason,
    value,
    ground_truth
from held_out_rows
