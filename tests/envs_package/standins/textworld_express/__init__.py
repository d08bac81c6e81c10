"""A stand-in for the package TextWorld-Express: where its program would be."""
