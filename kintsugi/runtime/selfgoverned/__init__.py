"""Workers that mend themselves: they agree in a ring on who is left, and carry out plans that they hold, without asking anybody."""
