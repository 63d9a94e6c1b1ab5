"""The order of batches: where an epoch, a window and the run end; sources that can only be walked through."""
