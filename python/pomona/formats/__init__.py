"""What is read out of an answer's text as it comes. Nothing here knows tokens, APIs or the engine."""
