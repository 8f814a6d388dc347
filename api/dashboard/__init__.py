"""The pages that people look at: jobs, plans, schedules, reasons, histories, what-if studies.

Everything is rendered by the service and readable without scripts; scripts of our own add live updates, keys and zoom.
"""
