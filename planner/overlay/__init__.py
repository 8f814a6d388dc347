"""How an overlay answers what befalls it: membership, links, over which of them gradients are reduced, and who sends the state."""
