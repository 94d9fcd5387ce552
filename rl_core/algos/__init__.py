"""Pure functions of tensors: advantages, losses, KL."""
