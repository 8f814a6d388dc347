"""What can be done after a loss, what each comes to, and which it is."""
