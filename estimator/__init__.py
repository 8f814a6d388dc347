"""How long does it take, does it fit?"""
