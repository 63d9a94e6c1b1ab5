"""From the newest good checkpoint back into the objects of the script."""
