"""Reasons for what the message itself cannot explain: questions to the whole run, explainers, budgets."""
