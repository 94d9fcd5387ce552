"""Runs on a card all that needs one, in one command: `make gpu-check`. Not only a test of speed."""
