"""The audit of a run: what its files must agree on, read from them; see `receipt.py`."""
