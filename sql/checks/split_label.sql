-- one row per problem that says it belongs to another split than the file it lies in.
-- Proves that nobody swapped the files.
with problems as (
    select
        'train' as split,
        extra_info.index,
        extra_info.split as label
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        extra_info.split as label
    from test
)

select
    split,
    index,
    label
from problems
where label is distinct from split
order by split, index
