"""What commands have of an object store, and what they leave there."""
