"""How do we get there?"""
