"""The matrix: data sets by models by failures by strategies, what each safety measure costs, and what is proven of it."""
