"""Values into words and pictures. Pure functions; nothing here reads a run or prints."""
