"""Runs for people: tables, pictures, warnings, progress."""
