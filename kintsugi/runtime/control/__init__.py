"""The agent: listens to the workers of this host, has losses decided, and conducts everybody onto the next plan."""
