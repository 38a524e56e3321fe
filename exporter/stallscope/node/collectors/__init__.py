"""Collectors, one file for each: each returns one part of the machine as samples of the catalogue's families."""
