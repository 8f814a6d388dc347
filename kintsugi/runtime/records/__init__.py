"""What a run writes down of itself, and what is proven from that later."""
