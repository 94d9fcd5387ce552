-- one row per test question whose numbers, in any order, a train question of the same kind has, too.
-- Proves that no answer of the test split was trained on.
with asked as (
    select
        split,
        index,
        data_source,
        list_sort(cast(regexp_extract_all(prompt[1].content, '[0-9]+') as bigint[])) as numbers
    from problems
)

select
    tested.index as test_index,
    trained.index as train_index,
    tested.data_source,
    tested.numbers
from asked as tested
inner join asked as trained
    on
        tested.data_source = trained.data_source
        and tested.numbers = trained.numbers
where
    tested.split = 'test'
    and trained.split = 'train'
order by test_index, train_index
