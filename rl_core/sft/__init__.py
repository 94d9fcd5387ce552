"""Supervised training (SFT): a home-made base model, or fine-tuning of a given one."""
