"""Text games: TextWorld and TextWorld-Express."""
