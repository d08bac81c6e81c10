"""ScienceWorld's tasks of school science."""
