-- one row per problem whose truth is blank, or an object or list that only a function can compare.
-- Proves that answers can be judged: a truth is a text or a number, or env.reward=module:function judges it.
-- $has_reward: bool = false (whether env.reward names a function)
select
    split,
    index,
    reward_model.ground_truth
from problems
where
    trim(reward_model.ground_truth) = ''
    or (
        not $has_reward
        and reward_model.style = 'json'
        and (starts_with(reward_model.ground_truth, '{') or starts_with(reward_model.ground_truth, '['))
    )
order by split, index
