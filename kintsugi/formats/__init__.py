"""Plans and profiles in the words of other systems; pure, one module per format."""
