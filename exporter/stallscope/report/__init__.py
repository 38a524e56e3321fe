"""The report of a run: what it says (`document`), and how it looks as a page, as Markdown and as JSON."""
