"""What runs on a card, run there in one command: `make gpu-check`. Not only a test of speed."""
