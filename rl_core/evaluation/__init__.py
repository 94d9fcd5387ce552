"""Stage 9: rows of an evaluation, what they say, and who becomes champion."""
