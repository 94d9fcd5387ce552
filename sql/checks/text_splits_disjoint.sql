-- one row per prompt, its white space aside, that both splits hold.
-- Proves that the test split measures problems that were never trained on.
with tested as (
    select
        list_transform(prompt, lambda m: trim(regexp_replace(m.content, '\s+', ' ', 'g'))) as words,
        min(extra_info.index) as test_index
    from test
    group by all
),

trained as (
    select
        list_transform(prompt, lambda m: trim(regexp_replace(m.content, '\s+', ' ', 'g'))) as words,
        min(extra_info.index) as train_index
    from train
    group by all
)

select
    tested.words,
    tested.test_index,
    trained.train_index
from trained
inner join tested on trained.words = tested.words
order by tested.test_index
