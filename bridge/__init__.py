"""Programs beside the application: forwarder, message query, codec commands, demo."""
