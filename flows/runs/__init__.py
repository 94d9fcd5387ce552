"""A flow run from the flow's side: which run it is, its state, and its end as text."""
