"""Questions in SQL to the files of runs, and how their rows are shown."""
