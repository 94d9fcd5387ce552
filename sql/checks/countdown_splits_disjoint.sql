-- one row per problem, in any order of its numbers, that both splits hold.
-- Proves that the test split measures problems that were never trained on.
with tested as (
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
    min(train.extra_info.index) as train_index
from train
inner join tested
    on
        list_sort(train.nums) = tested.numbers
        and train.target = tested.target
group by tested.numbers, tested.target, tested.test_index
order by tested.test_index
