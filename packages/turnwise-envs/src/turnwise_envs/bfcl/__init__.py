"""BFCL's multi-turn tool tasks."""
