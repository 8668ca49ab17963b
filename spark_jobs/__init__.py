"""Reconcile the native trace with the spans: read, judge, explain, report."""
