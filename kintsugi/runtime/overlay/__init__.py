"""The trainer's side of the overlay: workers that join and leave a running job by themselves, over the links between them.

A `Coordinator` holds a trainer's place in the job. Its agent reconciles the desired state that the scheduler publishes; the
training loop reduces gradients over the overlay's links alone. (Learning in Chaos, sections IV and V.)
"""
