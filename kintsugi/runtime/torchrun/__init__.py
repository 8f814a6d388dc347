"""How torchrun's agents meet at the service."""
