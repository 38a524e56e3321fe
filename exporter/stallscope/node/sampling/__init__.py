"""Clock, readings, workers with a watchdog, integrals, and the page that a scrape is answered with."""
