"""Pages to look at runs with: `turnwise view` serves them on this machine, `turnwise report` writes one file that needs nothing else.

Both show the same pages with the same scripts; only the source of the answers differs. `answers.py` holds every answer that a page can
ask for; `server.py` gives them over HTTP, `report.py` puts them into the file. `diagnosis.py` shows logs in the same way. Nothing here
writes into a run.
"""
