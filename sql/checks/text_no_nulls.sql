-- one row per problem in which something is missing: a null field, list or message.
-- Proves that readers of the files need not handle nulls.
select
    split,
    index,
    reward_model.ground_truth,
    extra_info.solution
from problems
where
    data_source is null
    or ability is null
    or prompt is null
    or len(list_filter(prompt, lambda m: m.role is null or m.content is null)) > 0
    or reward_model.style is null
    or reward_model.ground_truth is null
    or extra_info.split is null
    or extra_info.index is null
    or extra_info.num_solutions is null
    or extra_info.solution is null
