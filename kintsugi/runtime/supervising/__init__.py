"""A command that is started again until it ends well, or until that is no use."""
