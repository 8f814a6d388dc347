"""A worker process: what it holds, how it carries out its actions, and how a step commits."""
