-- one row per run, the best first: what it reached, in how many steps, tokens and hours.
-- Accuracies of different `decoding` do not compare.
-- Ask it which settings paid off; `settings_that_differ` shows what they were.
-- Example: countdown-train sql compare_runs
with tokens as (
    select
        run_id,
        sum(response_tokens) as response_tokens
    from rollouts
    group by run_id
),

tested as (
    select
        run_id,
        step,
        max(value) filter (where metric = 'val/accuracy') as accuracy,
        max(value) filter (where metric = 'val/score') as score
    from metrics
    where metric in ('val/accuracy', 'val/score')
    group by run_id, step
),

tests as (
    select
        run_id,
        max(accuracy) as best_test,
        max(score) as best_test_score,
        -- among equals as for the pointer `best`; step 0 has no checkpoint
        arg_max(step, [accuracy, (step > 0)::double, coalesce(score, '-infinity'::double), -step]) as best_at_step
    from tested
    group by run_id
),

decodings as (
    select
        run_id,
        if(
            bool_or(key = 'evaluation.decoding' and value = 'sampled'),
            string_agg(concat(split_part(key, '.', 2), '=', value), ' ' order by key),
            'greedy'
        ) as decoding
    from settings
    where
        key in (
            'evaluation.decoding', 'evaluation.samples_per_problem', 'evaluation.temperature', 'evaluation.top_k',
            'evaluation.top_p'
        )
    group by run_id
),

times as (
    select
        run_id,
        sum(value) / 3600 as train_hours
    from metrics
    where metric = 'timing_s/step'
    group by run_id
)

select
    runs.run_id,
    runs.preset,
    runs.status,
    runs.steps,
    runs.accuracy_before,
    runs.accuracy_after,
    tests.best_test,
    tests.best_test_score,
    tests.best_at_step,
    times.train_hours,
    tokens.response_tokens,
    decodings.decoding,
    runs.note
from runs
left join tests on runs.run_id = tests.run_id
left join times on runs.run_id = times.run_id
left join decodings on runs.run_id = decodings.run_id
left join tokens on runs.run_id = tokens.run_id
order by coalesce(runs.accuracy_after, tests.best_test) desc nulls last, runs.run_id asc
