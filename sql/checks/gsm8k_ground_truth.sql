-- one row per problem whose ground truth is no plain number, or not what stands after #### in its solution.
-- Proves that a right answer can be told from a wrong one.
with problems as (
    select
        'train' as split,
        extra_info.index,
        reward_model.ground_truth,
        extra_info.solution
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        reward_model.ground_truth,
        extra_info.solution
    from test
)

select
    split,
    index,
    ground_truth,
    solution
from problems
where
    regexp_full_match(ground_truth, '-?[0-9]*\.?[0-9]+') is distinct from true
    or trim(replace(string_split(solution, '####')[-1], ',', '')) is distinct from ground_truth
order by split, index
