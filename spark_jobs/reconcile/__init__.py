"""This package knows how two accounts of the same messages compare: one keyed pass, a verdict per event, the books.

``policy`` and ``profiles`` say what is tolerated, ``facts`` what the whole input shows, ``verdicts`` runs
``keys → fold → pair → surroundings → compare → classify``; ``tally``, ``balance``, ``gates``, ``durations`` and
``evidence`` make of the verdicts what a report needs. Frames in, frames out: no action is called here.
"""
