"""What several environments of this distribution share."""
