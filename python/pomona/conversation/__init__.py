"""What a client asked and what it gets back, independent of the API, the model family and the engine."""
