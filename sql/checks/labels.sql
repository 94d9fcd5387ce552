-- one row per problem whose data source, ability or reward style is not the one of its env.
-- Proves that this project and verl choose the right scorer for every row.
-- $data_source: str = countdown (the env's)
select
    split,
    index,
    data_source,
    ability,
    reward_model.style
from problems
where
    data_source is distinct from $data_source
    or ability is distinct from 'math'
    or reward_model.style is distinct from 'rule'
order by split, index
