"""What clients speak: each API is one file that turns bodies into requests and events into replies."""
