-- one row per problem whose truth lacks what reasoning-gym's scorer reads, or is of another task than its row.
-- Proves that the scorer of its own task judges every response.
select
    split,
    index,
    data_source,
    reward_model.ground_truth
from problems
where
    reward_model.style is distinct from 'json'
    or try(json_extract_string(reward_model.ground_truth, '$.answer')) is null
    or try(json_extract_string(reward_model.ground_truth, '$.question')) is null
    or ('reasoning_gym/' || try(json_extract_string(reward_model.ground_truth, '$.task'))) is distinct from data_source
order by split, index
