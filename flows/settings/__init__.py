"""Presets and overrides -> one validated configuration, and what each setting means."""
