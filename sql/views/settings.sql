-- one row per run and setting, as its config.yaml has it: the dotted key and its value as text.
select
    run_id,
    key,
    value
from setting_rows
