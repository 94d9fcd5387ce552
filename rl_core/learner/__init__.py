"""Stages 5 to 7: rollouts -> experience -> loss -> gradient -> weights."""
