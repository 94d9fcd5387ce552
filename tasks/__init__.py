"""One step of the pipeline per file."""
