-- one row per model, evaluation and problem: means over its responses that count, which are the greedy one, or all
-- samples where there is none (`evaluation.decoding=sampled`).
select
    run_id,
    evaluation,
    is_default,
    model,
    step,
    prompt_index,
    data_source,
    num_solutions,
    num_operands,
    prompt,
    ground_truth,
    any_value(mode) as mode,
    count(*) as samples,
    count(*) filter (where verdict = 'correct') / count(*) as accuracy,
    avg(cast(verdict_strict = 'correct' as integer)) as strict_accuracy,
    avg(cast(verdict_lenient = 'correct' as integer)) as lenient_accuracy,
    avg(score) as score,
    count(*) filter (where verdict not in ('no_answer', 'bad_syntax', 'too_long')) / count(*) as format_share,
    avg(response_tokens) as response_tokens
from all_evaluations
where counts
group by all
