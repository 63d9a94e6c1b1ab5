"""The command `stepfast`: words in, words out. What commands do is elsewhere; here they are asked and answered."""
