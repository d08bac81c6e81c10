"""The agent: how a prompt is made from the past, and how a response becomes an action."""
