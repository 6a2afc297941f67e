"""Loop and Scan in Relax: as one kernel, or as functions of bounded depth."""
