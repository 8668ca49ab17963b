"""Budgets: what counted losses and a sampling ratio cover of the residue that no explainer took."""
