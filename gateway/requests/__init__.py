"""A request's life: admission, a replica, events, the end."""
