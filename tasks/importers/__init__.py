"""verl's and TinyZero's launch scripts and logs -> presets and runs of ours."""
