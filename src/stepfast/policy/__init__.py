"""Pure rules about when: triggers, retention, options, the comparison of settings. No clock, no I/O."""
