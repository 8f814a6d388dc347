"""What would have happened: whole training jobs over days, under every policy, on drawn or measured failures."""
