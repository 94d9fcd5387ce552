-- one row per problem, in any order of its numbers, that both splits hold.
-- Proves that the test split measures problems that were never trained on.
with trained as (
    select
        list_sort(nums) as numbers,
        target,
        min(extra_info.index) as train_index
    from train
    group by all
),

tested as (
    select
        list_sort(nums) as numbers,
        target,
        min(extra_info.index) as test_index
    from test
    group by all
)

select
    tested.numbers,
    tested.target,
    tested.test_index,
    trained.train_index
from tested
inner join trained
    on
        tested.numbers = trained.numbers
        and tested.target = trained.target
order by tested.test_index
