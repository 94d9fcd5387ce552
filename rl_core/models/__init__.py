"""Actor, critic and reference: how they are loaded, and their forward passes."""
