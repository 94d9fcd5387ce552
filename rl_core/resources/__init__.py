"""Bytes, hours and money: planned before they are spent, and what to do when they end."""
