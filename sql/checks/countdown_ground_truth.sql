-- one row per problem whose ground truth is not its own numbers and target.
-- Proves that the reward scores the problem that the prompt asks.
with problems as (
    select
        'train' as split,
        extra_info.index,
        nums,
        target,
        reward_model.ground_truth
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        nums,
        target,
        reward_model.ground_truth
    from test
)

select
    split,
    index,
    nums,
    target,
    ground_truth.numbers as truth_numbers,
    ground_truth.target as truth_target
from problems
where
    ground_truth.numbers is distinct from nums
    or ground_truth.target is distinct from target
order by split, index
