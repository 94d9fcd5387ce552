-- one row per problem whose ground truth is not its own numbers and target.
-- Proves that the reward scores the problem that the prompt asks.
select
    split,
    index,
    nums,
    target,
    reward_model.ground_truth.numbers as truth_numbers,
    reward_model.ground_truth.target as truth_target
from problems
where
    reward_model.ground_truth.numbers is distinct from nums
    or reward_model.ground_truth.target is distinct from target
order by split, index
