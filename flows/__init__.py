"""Settings, the flow and the command line."""
