-- one row per problem whose ground truth is no plain number, or not what stands after #### in its solution.
-- Proves that a right answer can be told from a wrong one.
select
    split,
    index,
    reward_model.ground_truth,
    extra_info.solution
from problems
where
    regexp_full_match(reward_model.ground_truth, '-?[0-9]*\.?[0-9]+') is distinct from true
    or rtrim(trim(regexp_replace(string_split(extra_info.solution, '####')[-1], '[,$]', '', 'g')), '.')
    is distinct from reward_model.ground_truth
order by split, index
