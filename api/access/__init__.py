"""Who may do what: tokens, the gate before every request, its limits, and the record of who did what."""
