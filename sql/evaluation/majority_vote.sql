-- one row per run and evaluated model: how often the samples of a problem vote for the right value.
-- Ask it what voting gains over the average sample. Samples without a value do not vote; a tie is shared.
-- Example: countdown-train sql majority_vote --run latest
with votes as (
    select
        run_id,
        model,
        prompt_index,
        verdict = 'correct' as is_correct,
        if(verdict = 'correct', 'correct', value) as candidate,
        count(*) as num_votes
    from evaluations
    where mode = 'sampled' and ground_truth is not null
    group by run_id, model, prompt_index, is_correct, candidate
),

winners as (
    select *
    from votes
    where candidate is not null
    qualify num_votes = max(num_votes) over (partition by run_id, model, prompt_index)
),

elected as (
    select
        run_id,
        model,
        prompt_index,
        count(*) filter (where is_correct) / count(*) as credit
    from winners
    group by run_id, model, prompt_index
),

samples as (
    select
        run_id,
        model,
        prompt_index,
        sum(num_votes) as num_samples,
        coalesce(sum(num_votes) filter (where is_correct), 0) as num_correct
    from votes
    group by run_id, model, prompt_index
)

select
    samples.run_id,
    samples.model,
    count(*) as problems,
    cast(min(samples.num_samples) as bigint) as samples_per_problem,
    avg(samples.num_correct / samples.num_samples) as sample_accuracy,
    avg(coalesce(elected.credit, 0)) as majority_accuracy
from samples
left join elected
    on
        samples.run_id = elected.run_id
        and samples.model = elected.model
        and samples.prompt_index = elected.prompt_index
group by samples.run_id, samples.model
order by samples.run_id asc, samples.model != 'base', samples.model asc
