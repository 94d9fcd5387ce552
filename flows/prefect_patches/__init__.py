"""Fixes for Prefect: nights that it would lose, and shorter names of deployments."""
