"""MiniWoB++: tasks on web pages in a real browser."""
