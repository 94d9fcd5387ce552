-- one row per split without a single problem.
-- Proves that there is something to train on and something to test on.
select splits.split
from (values ('train'), ('test')) as splits (split)
anti join problems on splits.split = problems.split
