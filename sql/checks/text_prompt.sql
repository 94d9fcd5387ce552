-- one row per problem whose prompt holds no words.
-- Proves that the model is asked something.
with problems as (
    select
        'train' as split,
        extra_info.index,
        prompt
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        prompt
    from test
)

select
    split,
    index,
    prompt
from problems
where (len(list_filter(prompt, lambda m: trim(m.content, e' \t\r\n') != '')) > 0) is distinct from true
order by split, index
