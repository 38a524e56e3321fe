"""The report of a run for people: its content (`document`) and its rendering as HTML, Markdown and JSON."""
