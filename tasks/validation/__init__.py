"""What the data checks need beside the two splits."""
