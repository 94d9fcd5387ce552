"""Stage 3: engines that turn prompts into responses, and what collects those."""
