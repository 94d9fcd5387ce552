"""A model for others: a folder of its own with a card, and a hub's repository if asked."""
