"""The right loops that pitfalls are patches of: the code shown is the code that runs, so each is a file of its own."""
