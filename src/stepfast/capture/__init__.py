"""Copy the train state into a slot: layout, copy, and the draft of the manifest. Here the copy blocks."""
