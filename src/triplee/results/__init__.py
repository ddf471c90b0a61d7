"""What comes of runs: pictures now; tables, figures and the report page as they are added."""
