"""Webhooks: what a job's decisions are told to, signed and retried, at least once each."""
