"""Text to tokens and back: tokenizer, chat template, prompt, detokenizer. No mlx."""
