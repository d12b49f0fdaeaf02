"""Write what a run leaves behind, and read it again."""
