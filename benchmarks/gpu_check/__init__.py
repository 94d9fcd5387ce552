"""What runs on a card, run there in one command: `make gpu-check`. Not a test of speed alone."""
