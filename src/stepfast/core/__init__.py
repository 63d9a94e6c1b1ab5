"""The words of the product as types, errors, protocols and fault points. Standard library only, no I/O."""
