"""The command line: one thin skin over what Python offers."""
