"""The nouns: frozen dataclasses and errors; standard library only."""
