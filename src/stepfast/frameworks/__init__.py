"""One package per framework behind `core.protocols.Framework`. Nothing else imports a framework."""
