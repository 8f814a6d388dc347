"""Growth and churn measured: nodes behind slow, unequal links of a test bed of network namespaces, and who joins how fast."""
