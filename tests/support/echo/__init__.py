"""A third family of problems, as small as one can be: say the letter. A folder, and its class."""
